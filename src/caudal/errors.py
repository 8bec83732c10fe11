"""Every exception that Caudal raises on purpose.

A message says what was given, what was expected and what to do.

    CaudalError
    ├── ConfigError                 a flag, an environment variable or a combination of them
    ├── ModelNotFound               a model name that leads to no file on this disk
    ├── CheckpointError             a model file that cannot be used; names the file and the fact
    │   ├── UnsupportedArchitecture
    │   ├── UnsupportedFormat       a weight format or tokenizer that Caudal does not know
    │   ├── MissingTensor
    │   └── UnusedTensors
    ├── LibraryError                the models of a server could not be changed; carries the reason
    ├── RequestError                the request cannot be served as asked (HTTP 400)
    │   ├── InvalidParameter        carries the parameter's name
    │   ├── UnsupportedParameter    carries the parameter's name
    │   ├── PromptTooLong
    │   └── TemplateError           the chat template refused these messages
    ├── Overloaded                  the queue is full; carries retry_after_s (HTTP 429)
    ├── EngineUnavailable           starting or restarting; carries retry_after_s (HTTP 503)
    └── EngineDead                  the engine process died while it served the request (HTTP 500)
"""

from __future__ import annotations


class CaudalError(Exception):
    """The root of the tree."""


class ConfigError(CaudalError):
    """A flag, an environment variable or a combination of them makes no sense."""


class ModelNotFound(CaudalError):
    """A model name leads to no file on this disk."""


class LibraryError(CaudalError):
    """The models that a server keeps could not be changed as asked.

    Args:
        message: what is wrong.
        reason: "name" (it cannot be one), "unknown" (no such model), "exists" (the name is taken), "fixed" (not for
            clients to change), "busy", "offline", "network", "full" (the disk) or "disk" (it refuses).
    """

    def __init__(self, message: str, reason: str) -> None:
        super().__init__(message)
        self.reason = reason


class CheckpointError(CaudalError):
    """A model file cannot be used.

    Args:
        fact: what is wrong, with the values found and expected.
        path: the file.
        offset: the byte in the file at which the fact was found, when there is one.
    """

    def __init__(self, fact: str, *, path: object = None, offset: int | None = None) -> None:
        where = "" if path is None else f"{path}: "
        at = "" if offset is None else f" (at byte {offset})"
        super().__init__(f"{where}{fact}{at}")
        self.fact = fact
        self.path = path
        self.offset = offset


class UnsupportedArchitecture(CheckpointError):
    """The model's architecture has no row in the table of architectures."""


class UnsupportedFormat(CheckpointError):
    """A weight format or a tokenizer that Caudal does not know."""


class MissingTensor(CheckpointError):
    """The architecture needs a tensor that the checkpoint does not hold."""


class UnusedTensors(CheckpointError):
    """The checkpoint holds tensors that the architecture never asked for."""


class RequestError(CaudalError):
    """The request cannot be served as asked. Nothing is wrong with the engine."""

    def __init__(self, message: str, *, parameter: str | None = None) -> None:
        super().__init__(message)
        self.parameter = parameter


class InvalidParameter(RequestError):
    """A known parameter has a value outside its range."""


class UnsupportedParameter(RequestError):
    """A parameter that would change the answer's meaning and is not supported."""


class PromptTooLong(RequestError):
    """Prompt and requested tokens can never fit the context. Carries both numbers where they are known."""

    def __init__(
        self,
        message: str,
        *,
        parameter: str | None = None,
        num_prompt_tokens: int | None = None,
        max_model_len: int | None = None,
    ) -> None:
        super().__init__(message, parameter=parameter)
        self.num_prompt_tokens = num_prompt_tokens
        self.max_model_len = max_model_len


class TemplateError(RequestError):
    """The model's chat template refused these messages."""


class Overloaded(CaudalError):
    """The queue is full."""

    def __init__(self, message: str, *, retry_after_s: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class EngineUnavailable(CaudalError):
    """The engine is starting or restarting."""

    def __init__(self, message: str, *, retry_after_s: float = 2.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class EngineDead(CaudalError):
    """The engine process died while it served the request."""
