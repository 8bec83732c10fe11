"""The cursor over a checkpoint's tensors."""

import numpy as np
import pytest

from caudal.checkpoint import Tensor, Weights
from caudal.errors import CheckpointError, MissingTensor, UnusedTensors


def weights(*names, shape=(2, 3)):
    data = np.zeros(int(np.prod(shape)) * 4, np.uint8)
    return Weights({name: Tensor(name, "F32", shape, data) for name in names}, "model.gguf")


def test_scopes_join_with_dots_and_share_what_is_used():
    w = weights("blk.0.attn_q.weight", "blk.1.attn_q.weight", "output.weight")
    for index in range(2):
        scope = w / "blk" / index
        assert scope.has("attn_q.weight")
        assert scope.take("attn_q.weight").name == f"blk.{index}.attn_q.weight"
    with pytest.raises(
        UnusedTensors, match=r"model.gguf: the model does not use 1 of the file's tensors: output.weight"
    ):
        (w / "blk").finish()
    w.take("output.weight", (2, 3))
    w.take("output.weight")
    w.finish()


def test_a_missing_tensor_names_itself_and_its_neighbours():
    with pytest.raises(MissingTensor, match=r"'blk.0.attn_q.weight'.*nearest names are blk.0.attn_k.weight"):
        (weights("blk.0.attn_k.weight") / "blk.0").take("attn_q.weight")


def test_a_wrong_shape_names_both_shapes_and_does_not_count_as_used():
    w = weights("a")
    with pytest.raises(CheckpointError, match=r"tensor 'a' has shape \(2, 3\); the model expects \(3, 2\)"):
        w.take("a", (3, 2))
    with pytest.raises(UnusedTensors):
        w.finish()


def test_optional_tensors():
    w = weights("a")
    assert w.take_optional("b") is None
    assert not w.has("b")
    with pytest.raises(CheckpointError):
        w.take_optional("a", (1,))
    assert w.take_optional("a", (2, 3)).name == "a"
    w.finish()


def test_asking_whether_a_tensor_exists_is_not_using_it():
    w = weights("a")
    assert w.has("a")
    with pytest.raises(UnusedTensors):
        w.finish()


def test_unused_tensors_are_listed_up_to_five():
    with pytest.raises(UnusedTensors, match=r"does not use 7 .*: t0, t1, t2, t3, t4 and 2 more;"):
        weights(*(f"t{index}" for index in range(7))).finish()
