"""The model files that a server may load: those named to it, and those in a folder. Looked up anew at each call.

A file's header is read once for each version of the file (its shards' sizes and times of change). A file that cannot
be used is listed with the reason.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from caudal.checkpoint import open_checkpoint
from caudal.errors import CheckpointError
from caudal.hub.resolve import find_folders, find_ggufs, model_shards, plain_name

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from caudal.checkpoint import Checkpoint

_KV_ELEMENT_BYTES = 2  # float16


@dataclass(frozen=True, slots=True)
class HeaderFacts:
    """What a file's header says about what it takes to run the model.

    Attributes:
        context_length: tokens that the model was made for; None if the file does not say.
        kv_bytes_per_token: of the KV cache in float16 while no window lets go of anything; 0 if the file does not say.
        error: why the file cannot be used; None if nothing is known against it.
        description: what the caller's own `describe` made of the open file; None without one.
    """

    context_length: int | None = None
    kv_bytes_per_token: int = 0
    error: str | None = None
    description: Any = None


@dataclass(frozen=True, slots=True)
class ModelFile:
    """A model that may be loaded.

    Attributes:
        name: given with the file, or its path in the folder without the ending.
        path: of the file, or of the first shard.
        size_bytes: of all shards.
        modified_s: Unix time of the latest change of a shard.
        facts: from its header.
    """

    name: str
    path: Path
    size_bytes: int
    modified_s: float
    facts: HeaderFacts


class ModelFiles:
    """Looks for models.

    Args:
        named: names and files, which come first.
        folder: all models in it and below come after them; None for none.
        describe: called with each new file while it is open; see HeaderFacts.description.
    """

    def __init__(
        self,
        named: Sequence[tuple[str, Path]],
        folder: Path | None = None,
        describe: Callable[[Checkpoint], Any] | None = None,
    ) -> None:
        self._describe_open = describe
        self._named = tuple(named)
        self._folder = folder
        self._facts: dict[tuple[object, ...], HeaderFacts] = {}

    def look(self) -> list[ModelFile]:
        """Return every model there is now. Blocks: it asks the disk, and reads the headers of new files."""
        found = list(self._named)
        known = {path.resolve() for _, path in found}
        names = {name for name, _ in found}
        for path in self._in_folder():
            if path.resolve() not in known:
                name = path.relative_to(self._folder).with_name(plain_name(path)).as_posix()  # type: ignore[arg-type]
                found.append((f"{name}.gguf" if name in names else name, path))
        before, self._facts = self._facts, {}
        return [self._describe(name, path, before) for name, path in found]

    def _in_folder(self) -> list[Path]:
        return [] if self._folder is None else [*find_ggufs(self._folder), *find_folders(self._folder)]

    def _describe(self, name: str, path: Path, before: Mapping[tuple[object, ...], HeaderFacts]) -> ModelFile:
        try:
            stats = [shard.stat() for shard in model_shards(path)]
        except OSError as error:
            reason = f"cannot read the file: {error.strerror or error}"
            return ModelFile(name, path, 0, 0.0, HeaderFacts(error=reason))
        key = (path, *((each.st_ino, each.st_size, each.st_mtime_ns) for each in stats))
        facts = before.get(key) or read_facts(path, self._describe_open)
        self._facts[key] = facts
        size, modified_s = sum(each.st_size for each in stats), max(each.st_mtime for each in stats)
        return ModelFile(name, path, size, modified_s, facts)


def read_facts(path: Path, describe: Callable[[Checkpoint], Any] | None = None) -> HeaderFacts:
    """Return what a file's header says; of a file that cannot be used, why."""
    try:
        with open_checkpoint(path) as checkpoint:
            facts = facts_of(checkpoint.metadata)
            return facts if describe is None else replace(facts, description=describe(checkpoint))
    except CheckpointError as error:
        return HeaderFacts(error=error.fact)


def facts_of(metadata: Mapping[str, Any]) -> HeaderFacts:
    """Return what the metadata says. What it says wrongly counts as not said: whoever loads the model complains."""
    prefix = metadata.get("general.architecture")

    def numbers(key: str) -> list[int]:
        value = metadata.get(f"{prefix}.{key}")
        each = value if isinstance(value, list) else [value]
        return [number for number in each if type(number) is int and number > 0]

    def number(key: str) -> int:
        return max(numbers(key), default=0)

    heads = number("attention.head_count")
    kv_heads = numbers("attention.head_count_kv") or [heads]
    layers = number("block_count")
    head_size = number("attention.key_length") or (number("embedding_length") // heads if heads else 0)
    width = head_size + (number("attention.value_length") or head_size)
    num_kv_heads = sum(kv_heads) if len(kv_heads) > 1 else kv_heads[0] * layers
    return HeaderFacts(number("context_length") or None, num_kv_heads * width * _KV_ELEMENT_BYTES)
