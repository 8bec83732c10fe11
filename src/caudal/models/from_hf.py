"""Fills a DecoderSpec from a Hugging Face configuration, and finds the decoder's tensors in its checkpoint.

Source: transformers' documentation of the configuration classes named in hf_models.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, get_args

from caudal.backends.base import Activation
from caudal.checkpoint.hf_folder import plain_tensor
from caudal.checkpoint.weights import Weights
from caudal.errors import CheckpointError, UnsupportedArchitecture, UnsupportedFormat
from caudal.models.checked_keys import MAX_LAYERS, MAX_TOKENS, CheckedKeys
from caudal.models.hf_models import HFModel, find_hf_model
from caudal.models.hf_rope import FULL, SLIDING, HFRope
from caudal.models.spec import DecoderSpec, LayerSpec

if TYPE_CHECKING:
    from collections.abc import Mapping

    from caudal.checkpoint.hf_folder import HFFolder
    from caudal.checkpoint.tensor import Tensor

_ACTIVATIONS: Mapping[str, Activation] = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_new": "gelu_tanh",
}
assert set(_ACTIVATIONS.values()) == set(get_args(Activation))


def text_config(folder: HFFolder) -> dict[str, Any]:
    """Return what the configuration says of the text model, without keys that are null."""
    config = dict(folder.config)
    inner = config.get("text_config")
    if isinstance(inner, dict):
        config |= inner
    return {key: value for key, value in config.items() if value is not None}


def find_model(folder: HFFolder) -> HFModel:
    """Return the row of the folder's model type.

    Raises:
        UnsupportedArchitecture: there is none.
        CheckpointError: the configuration names no model type.
    """
    keys = CheckedKeys(text_config(folder), path=folder.config_path)
    return find_hf_model(keys.str("model_type"), folder.config_path)


def hf_context_length(folder: HFFolder) -> int:
    """Return the tokens that the model was made for.

    Raises:
        CheckpointError: the configuration does not say.
    """
    config = {**find_model(folder).defaults, **text_config(folder)}
    return HFRope(config, folder.config_path, None, MAX_TOKENS).context_length


def hf_weights(folder: HFFolder) -> Weights:
    """Return a cursor over the folder's tensors, by the names that the decoder asks for.

    Raises:
        UnsupportedFormat: they are stored in a way that Caudal does not have.
        CheckpointError: two tensors are the same one.
    """
    model = find_model(folder)
    _refuse_quantized(folder)
    is_tied = text_config(folder).get("tie_word_embeddings", model.ties_embeddings)
    tensors: dict[str, Tensor] = {}
    for stored, array in folder.arrays.items():
        name = model.names.canonical(stored)
        if name is None or (is_tied and name == "output.weight"):
            continue
        if name in tensors:
            fact = f"tensors {tensors[name].name!r} and {stored!r} are both the model's {name}"
            raise CheckpointError(fact, path=folder.path)
        tensor = plain_tensor(array, folder.path)
        is_norm = name.endswith("norm.weight")
        tensors[name] = tensor.plus(model.norm_offset) if is_norm and model.norm_offset else tensor
    weights = Weights(tensors, folder.path, model.names.stored)
    if is_tied is False and not weights.has("output.weight"):
        weights.take("output.weight")  # raises MissingTensor
    return weights


def _refuse_quantized(folder: HFFolder) -> None:
    found = folder.config.get("quantization_config") or text_config(folder).get("quantization_config")
    if found is not None:
        method = found.get("quant_method") if isinstance(found, dict) else found
        fact = f"the weights are quantised ({str(method)[:40]}), which Caudal does not read in safetensors yet; "
        raise UnsupportedFormat(fact + "use the F16 or BF16 checkpoint, or a GGUF file", path=folder.path)


def read_hf_spec(folder: HFFolder, weights: Weights, max_model_len: int | None = None) -> DecoderSpec:
    """Read what the configuration says, and fill in what its model type implies.

    Args:
        folder: an open folder.
        weights: cursor at the root of its tensors.
        max_model_len: tokens that a sequence may have; see from_gguf.read_spec.

    Raises:
        UnsupportedArchitecture: no row for the model type, or a variant of it that Caudal does not have.
        CheckpointError: a key is missing, has the wrong type or makes no sense.
    """
    return _HFSpec(folder, weights, max_model_len).read()


class _HFSpec:
    """The reading of one configuration."""

    def __init__(self, folder: HFFolder, weights: Weights, max_model_len: int | None) -> None:
        self._model = find_model(folder)
        self._row = self._model.row
        self._config = {**self._model.defaults, **text_config(folder)}
        self._stated = folder.config
        self._path = folder.config_path
        self._keys = CheckedKeys(self._config, path=self._path)
        self._weights = weights
        self._rope = HFRope(self._config, self._path, self._row.local_rope_theta, max_model_len or MAX_TOKENS)
        self._max_model_len = max_model_len or self._rope.context_length

    def read(self) -> DecoderSpec:
        keys, row = self._keys, self._row
        self._refuse_variants()
        hidden_size = keys.size("hidden_size")
        num_layers = keys.size("num_hidden_layers", limit=MAX_LAYERS)
        num_heads = keys.size("num_attention_heads")
        num_kv_heads = keys.size("num_key_value_heads", num_heads)
        if num_heads % num_kv_heads:
            keys.fail("num_key_value_heads", num_kv_heads, f"a divisor of num_attention_heads, {num_heads}")
        head_size = keys.size("head_dim", max(1, hidden_size // num_heads))
        windows = self._windows(num_layers)
        layer_ropes = [self._rope.read(FULL if window is None else SLIDING, head_size) for window in windows]
        ropes = tuple(dict.fromkeys(layer_ropes))
        scale = keys.positive("query_pre_attn_scalar", head_size) ** -0.5
        layers = tuple(
            LayerSpec(
                num_heads=num_heads,
                num_kv_heads=num_kv_heads,
                head_size=head_size,
                ffn_size=keys.size("intermediate_size"),
                attention_scale=scale,
                window=None if window is None or window >= self._max_model_len else window,
                rope=ropes.index(rope),
            )
            for window, rope in zip(windows, layer_ropes, strict=True)
        )
        return DecoderSpec(
            architecture=row.name,
            vocab_size=self._vocab_size(),
            hidden_size=hidden_size,
            context_length=self._rope.context_length,
            norm_eps=keys.positive("rms_norm_eps", 1e-6),
            layers=layers,
            ropes=ropes,
            activation=self._activation(),
            embed_scale=math.sqrt(hidden_size) if row.scales_embedding else 1.0,
            attention_softcap=self._softcap("attn_logit_softcapping", row.attention_softcap),
            final_softcap=self._softcap("final_logit_softcapping", row.final_softcap),
            required_tensors=row.required_tensors,
        )

    def _refuse_variants(self) -> None:
        """Fail on what changes the meaning of the model and has no place in the spec."""
        for key in ("use_bidirectional_attention", "is_encoder_decoder"):
            if self._config.get(key):
                fact = f"{key} is {self._config[key]}, which is not supported in safetensors; use a GGUF file"
                raise UnsupportedArchitecture(fact, path=self._path)

    def _vocab_size(self) -> int:
        """Rows of the embedding table; a size that the file names must agree."""
        rows = self._weights.take("token_embd.weight").shape[0]
        return self._keys.checked("vocab_size", self._keys.int("vocab_size", rows))

    def _windows(self, num_layers: int) -> list[int | None]:
        """The window of every layer, None for full attention."""
        keys = self._keys
        window = keys.int("sliding_window", 0)
        use = self._model.window
        if not window or use == "never" or (use == "when asked" and not keys.bool("use_sliding_window", False)):
            return [None] * num_layers
        keys.checked("sliding_window", window, MAX_TOKENS)
        return [window if slides else None for slides in self._sliding_layers(num_layers)]

    def _sliding_layers(self, num_layers: int) -> list[bool]:
        """Whether each layer has a window."""
        kinds = self._keys.strs("layer_types", num_layers, None)
        if kinds is not None:
            unknown = next((kind for kind in kinds if kind not in (FULL, SLIDING)), None)
            if unknown is not None:
                self._keys.fail("layer_types", f"a list with {unknown!r}", f"{FULL} and {SLIDING}")
            return [kind == SLIDING for kind in kinds]
        if self._row.window_period is None:  # Qwen's: the upper layers
            first = self._keys.int("max_window_layers", 0)
            return [index >= first for index in range(num_layers)]
        period = self._keys.int("sliding_window_pattern", self._row.window_period)
        if period < 0:
            self._keys.fail("sliding_window_pattern", period, "a period of layers")
        return [period == 0 or index % period < period - 1 for index in range(num_layers)]

    def _activation(self) -> Activation:
        key = "hidden_activation" if self._keys.has("hidden_activation") else "hidden_act"
        name = self._keys.str(key, None)
        if name is None:
            return self._row.activation
        if name not in _ACTIVATIONS:
            self._keys.fail(key, repr(name), f"one of {', '.join(_ACTIVATIONS)}")
        return _ACTIVATIONS[name]

    def _softcap(self, key: str, default: float | None) -> float | None:
        """A softcap; null in the file is off."""
        return self._keys.softcap(key, None if key in self._stated else default)
