"""Downloads a model into the Hugging Face cache, where `resolve` and other programs find it.

    models--ORG--NAME/blobs/DIGEST             the files
    models--ORG--NAME/snapshots/COMMIT/FILE    links to them
    models--ORG--NAME/refs/main                the commit

Source: huggingface_hub, "Understand caching".
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from caudal.errors import CaudalError, ConfigError, ModelNotFound
from caudal.hub import repository
from caudal.hub.partial_file import DownloadError, download
from caudal.hub.resolve import DEFAULT_QUANT, DEMO_NAME, REPO, SHARD, hub_cache, resolve

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from caudal.hub.partial_file import WantedFile
    from caudal.hub.repository import Repository

    PullProgress = Callable[[str, int, int], None]
    PullBegin = Callable[[Sequence[WantedFile]], None]

QUANT_ORDER = (
    DEFAULT_QUANT, "Q4_K_S", "Q5_K_M", "Q4_0", "IQ4_XS", "IQ4_NL", "Q5_K_S", "Q4_1", "Q6_K", "Q5_0", "Q5_1", "Q8_0",
    "Q3_K_M", "Q3_K_L", "Q3_K_S", "MXFP4", "BF16", "F16", "Q2_K", "F32",
)  # fmt: skip
"""What is pulled when nothing else is said: the first of these that a repository has."""

_PLACES = re.compile(r"(?:hf://|(?:https?://)?(?:www\.)?(?:hf\.co|huggingface\.co)/)", re.IGNORECASE)
_BLOB_PAGE = re.compile(r"(?P<repo>[^/]+/[^/]+)/(?:blob|resolve)/main/(?P<file>.+)")
_WHICH_SHARD = re.compile(r"-(?P<number>[0-9]{5})-of-(?P<count>[0-9]{5})$")


@dataclass(frozen=True, kw_only=True)
class PulledModel:
    """What a pull has brought.

    Attributes:
        name: what `resolve` takes for it.
        path: of the file, or of the first shard.
        num_bytes: of all files.
        num_new_bytes: of those that were not there yet.
    """

    name: str
    path: Path
    num_bytes: int
    num_new_bytes: int


@dataclass(frozen=True, kw_only=True)
class ModelName:
    """ORG/REPO, and a quantisation or a file in it if one was named."""

    repo_id: str
    quant: str | None = None
    file: str | None = None


def read_name(name: str) -> ModelName:
    """Take a name apart: ORG/REPO[:QUANT] or ORG/REPO/FILE.gguf, with or without the hub's address before it.

    Raises:
        ConfigError: it is none.
    """
    plain = _PLACES.sub("", name.strip(), count=1).rstrip("/")
    page = _BLOB_PAGE.fullmatch(plain)
    if page is not None:
        plain = f"{page['repo']}/{page['file'].partition('?')[0]}"
    match = REPO.fullmatch(plain)
    if match is None:
        hint = "it comes with pip install 'caudal[demo]'; to pull another, " if name.lower() == DEMO_NAME else ""
        message = f"cannot pull {name!r}: {hint}give ORG/REPO, ORG/REPO:QUANT or ORG/REPO/FILE.gguf of the hub"
        raise ConfigError(message)
    quant = None if (match["quant"] or "latest").lower() == "latest" else match["quant"]
    return ModelName(repo_id=f"{match['org']}/{match['name']}", quant=quant, file=match["file"])


def choose_files(files: Sequence[str], wanted: ModelName) -> list[str]:
    """Return the files of the model that is wanted: one, or all its shards in order.

    Raises:
        ModelNotFound: there is none, it is not clear which, or shards are missing.
    """
    models: dict[str, list[str]] = {}
    for file in sorted(files):
        folder, _, base = file.rpartition("/")
        if base.lower().endswith(".gguf") and not base.lower().startswith("mmproj"):
            stem = SHARD.sub("", base[: -len(".gguf")])
            models.setdefault(f"{folder}/{stem}".lstrip("/"), []).append(file)
    if not models:
        message = f"{wanted.repo_id} holds no GGUF file; look for a GGUF version of the model, often called -GGUF"
        raise ModelNotFound(message)
    chosen = _choose(models, wanted)
    _check_shards(chosen, wanted.repo_id)
    return chosen


def _choose(models: dict[str, list[str]], wanted: ModelName) -> list[str]:
    if wanted.file is not None:
        found = [files for files in models.values() if wanted.file in files]
        if found:
            return found[0]
        message = f"{wanted.repo_id} holds no {wanted.file}; it has {_shown(models)}"
        raise ModelNotFound(message)
    for quant in (wanted.quant,) if wanted.quant else QUANT_ORDER:
        names = [name for name in models if name.lower().endswith(quant.lower())]
        names = names or [name for name in models if quant.lower() in name.lower()]
        if len(names) == 1 or (names and not wanted.quant):
            return models[min(names, key=len)]
        if names:
            message = (
                f"{wanted.repo_id} has {len(names)} models of {quant}: {_shown(names)}; give one as ORG/REPO/FILE.gguf"
            )
            raise ModelNotFound(message)
    if wanted.quant:
        message = f"{wanted.repo_id} has nothing of {wanted.quant}; it has {_shown(models)}"
        raise ModelNotFound(message)
    return next(iter(models.values()))


def _check_shards(files: list[str], repo_id: str) -> None:
    numbers = [match for file in files if (match := _WHICH_SHARD.search(file[: -len(".gguf")]))]
    if not numbers:
        return
    count = int(numbers[0]["count"])
    if [int(match["number"]) for match in numbers] != list(range(1, count + 1)):
        message = f"{repo_id} has {len(files)} of {count} shards: {', '.join(files[:4])}; it cannot be used"
        raise ModelNotFound(message)


def _shown(names: Sequence[str] | dict[str, list[str]]) -> str:
    shown = [f"{name}.gguf" for name in names]
    return ", ".join(shown[:10]) + (f" and {len(shown) - 10} more" if len(shown) > 10 else "")


def pull(name: str, progress: PullProgress | None = None, begin: PullBegin | None = None) -> PulledModel:
    """Download a model, or what is missing of it.

    Args:
        name: see read_name.
        progress: told a file's name, the bytes of it that are here, and all. What it raises ends the pull, and the
            next one goes on from there.
        begin: told once which files the model has, before the first of them is brought.

    Raises:
        ConfigError: the name is none.
        ModelNotFound: the hub has no such model.
        DownloadError: it could not be brought.
        CaudalError: the network is forbidden, and the model is not here.
    """
    wanted = read_name(name)
    if repository.is_offline():
        return _offline(wanted)
    found = repository.look_up(wanted.repo_id)
    files = choose_files(list(found.files), wanted)
    folder = hub_cache() / f"models--{wanted.repo_id.replace('/', '--')}"
    num_new = 0
    if begin is not None:
        begin([found.files[file] for file in files])
    try:
        (folder / "blobs").mkdir(parents=True, exist_ok=True)
        for file in files:
            want = found.files[file]
            tell = None if progress is None else lambda done, total, file=file: progress(file, done, total)
            source = repository.FileOnTheHub(found, file)
            if download(want, source, folder / "blobs" / want.digest, tell):
                num_new += want.num_bytes
        path = _link(folder, found, files)
    except OSError as error:
        message = (
            f"cannot write to {folder}: {error.strerror or error}; set HF_HUB_CACHE to a folder that you may write to"
        )
        raise DownloadError(message) from error
    num_bytes = sum(found.files[file].num_bytes for file in files)
    return PulledModel(name=f"{wanted.repo_id}/{files[0]}", path=path, num_bytes=num_bytes, num_new_bytes=num_new)


def _offline(wanted: ModelName) -> PulledModel:
    tail = f"/{wanted.file}" if wanted.file else f":{wanted.quant}" if wanted.quant else ""
    name = wanted.repo_id + tail
    try:
        path = resolve(name)
    except ModelNotFound as error:
        message = f"{name} is not on this disk, and HF_HUB_OFFLINE forbids to download it"
        raise CaudalError(message) from error
    return PulledModel(name=name, path=path, num_bytes=path.stat().st_size, num_new_bytes=0)


def _link(folder: Path, found: Repository, files: Sequence[str]) -> Path:
    """Make the commit's snapshot, and return the first file in it.

    Other models of this commit whose files are here get their links too, so that they are not lost from sight.
    """
    snapshot = folder / "snapshots" / found.commit
    for file, want in found.files.items():
        blob, link = folder / "blobs" / want.digest, snapshot / file
        if (file in files or file.endswith(".gguf")) and blob.is_file() and not link.exists():
            link.parent.mkdir(parents=True, exist_ok=True)
            link.unlink(missing_ok=True)
            link.symlink_to(os.path.relpath(blob, link.parent))
    ref = folder / "refs" / "main"
    ref.parent.mkdir(parents=True, exist_ok=True)
    new = ref.with_name("main.new")
    new.write_text(found.commit, encoding="utf-8")
    new.replace(ref)
    return snapshot / files[0]
