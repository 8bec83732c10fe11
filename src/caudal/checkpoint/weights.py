"""A cursor over a checkpoint's tensors that remembers which were asked for."""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING

from caudal.errors import CheckpointError, MissingTensor, UnusedTensors

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from caudal.checkpoint.tensor import Tensor


class Weights:
    """Tensors under a prefix. `w / "blk" / 0` is the scope "blk.0"; all scopes of one checkpoint share what is used.

    A tensor may be asked for more than once (tied embeddings).

    Args:
        tensors: name -> tensor.
        path: the file, for errors.
        spelled: what the file calls a tensor, for errors; None: as here.
    """

    def __init__(
        self, tensors: Mapping[str, Tensor], path: Path | str, spelled: Callable[[str], str] | None = None
    ) -> None:
        self._tensors = tensors
        self._path = path
        self._spelled = spelled or str
        self._prefix = ""
        self._used: set[str] = set()

    def __truediv__(self, scope: str | int) -> Weights:
        """Return the cursor for a scope inside this one."""
        inner = Weights(self._tensors, self._path, self._spelled)
        inner._prefix = f"{self._prefix}{scope}."
        inner._used = self._used
        return inner

    def has(self, name: str) -> bool:
        """Tell whether a tensor exists. This does not count as asking for it."""
        return self._prefix + name in self._tensors

    def take(self, name: str, shape: tuple[int, ...] | None = None) -> Tensor:
        """Return a tensor and mark it used.

        Raises:
            MissingTensor: no such tensor.
            CheckpointError: it has another shape than the one given.
        """
        full = self._prefix + name
        tensor = self._tensors.get(full)
        if tensor is None:
            near = [self._spelled(name) for name in get_close_matches(full, self._tensors, n=3)]
            hint = f"; the nearest names are {', '.join(near)}" if near else ""
            fact = f"the model needs tensor {self._spelled(full)!r}, which the file does not hold{hint}"
            raise MissingTensor(fact, path=self._path)
        if shape is not None and tensor.shape != shape:
            fact = f"tensor {self._spelled(full)!r} has shape {tensor.shape}; the model expects {shape}"
            raise CheckpointError(fact, path=self._path)
        self._used.add(full)
        return tensor

    def take_optional(self, name: str, shape: tuple[int, ...] | None = None) -> Tensor | None:
        """Return a tensor as `take` does, or None if there is none."""
        return self.take(name, shape) if self.has(name) else None

    def finish(self) -> None:
        """Check that every tensor of the checkpoint was asked for, in whatever scope.

        Raises:
            UnusedTensors: the model ignored something in the file, so its answers would be wrong.
        """
        unused = [self._spelled(name) for name in self._tensors if name not in self._used]
        if unused:
            more = f" and {len(unused) - 5} more" if len(unused) > 5 else ""
            fact = f"the model does not use {len(unused)} of the file's tensors: {', '.join(unused[:5])}{more}"
            fact += "; Caudal does not support this variant of the architecture"
            raise UnusedTensors(fact, path=self._path)
