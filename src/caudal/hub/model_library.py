"""Changes the models of a folder: fetches some from the hub, gives them further names, deletes them.

The weights are in the Hugging Face cache, once; the folder has links to them. May be used by several threads.
"""

from __future__ import annotations

import errno
import threading
from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING

from caudal.errors import CaudalError, ConfigError, LibraryError, ModelNotFound
from caudal.hub.library_names import copy_name, pulled_name
from caudal.hub.linked_folder import LinkedFolder, link_target
from caudal.hub.partial_file import DownloadError
from caudal.hub.pull import pull, read_name
from caudal.hub.remove import plan_removal
from caudal.hub.resolve import hub_cache, model_shards

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from caudal.hub.pull import PullBegin, PullProgress
    from caudal.hub.remove import Removal


class ModelLibrary:
    """See the module.

    Args:
        folder: the models in it and below may be changed.
        named: names and files of the models that the server was started with; those may not.
    """

    def __init__(self, folder: Path, named: Mapping[str, Path]) -> None:
        self._folder = LinkedFolder(folder)
        self._named = dict(named)
        self._changing = threading.Lock()
        self._pulling: Counter[str] = Counter()

    def pulled_name(self, name: str) -> str:
        """Return what a model is listed as once it is pulled; see library_names.pulled_name."""
        return pulled_name(name)

    def copy_name(self, name: str) -> str:
        """Return what a copy is listed as; see library_names.copy_name."""
        return copy_name(name)

    def pull(self, name: str, begin: PullBegin, progress: PullProgress) -> None:
        """Fetch a model from the hub, or what is missing of it, and list it in the folder.

        Args:
            name: of a model on the hub; see hub.pull.read_name.
            begin: told the model's files before they are brought.
            progress: told how far each is. What it raises ends the pull, and the next one goes on from there.

        Raises:
            LibraryError: it could not be done.
        """
        listed = pulled_name(name)
        with self._while_pulling(read_name(name).repo_id):
            try:
                pulled = pull(name, progress, begin)
            except CaudalError as error:
                raise LibraryError(self._without_places(str(error)), _reason(error)) from error
            with self._changing:
                self._folder.add(listed, self._files_to_link(listed, pulled.path))

    def copy(self, name: str, path: Path, destination: str) -> None:
        """Give a model a further name. It stays when the first one is deleted.

        Args:
            name: what the model is listed as.
            path: of its file, or of its first shard.
            destination: as copy_name returned it.

        Raises:
            LibraryError: it could not be done.
        """
        self.check_ours(name, path)
        with self._changing:
            self._folder.copy(_files_of(path), destination)

    def delete(self, name: str, path: Path) -> None:
        """Take a model out of the folder, and out of the Hugging Face cache if no other model served here uses it.

        Args:
            name: what the model is listed as.
            path: of its file, or of its first shard.

        Raises:
            LibraryError: it could not be done.
        """
        self.check_ours(name, path)
        with self._changing:
            files = _files_of(path)
            removal = self._removal(files)
            if removal is not None and self._pulling[removal.folder.name]:
                message = f"{name!r} cannot be deleted while a model of the same repository is being pulled; try later"
                raise LibraryError(message, "busy")
            self._folder.remove(files)
            if removal is not None:
                try:
                    removal.carry_out()
                except CaudalError as error:
                    message = f"{name!r} is not served any more, but {self._without_places(str(error))}"
                    raise LibraryError(message, "disk") from error

    def check_ours(self, name: str, path: Path) -> None:
        """Raise LibraryError if clients may not change a model: it does not come from the folder."""
        if name in self._named or not path.is_relative_to(self._folder.path):
            message = (
                f"the model {name!r} was given by name when the server was started, and clients may only change those "
                "in --models-dir; ask whoever started it"
            )
            raise LibraryError(message, "fixed")
        if path.is_dir():
            message = f"the model {name!r} is a folder of safetensors, and clients may only change GGUF models"
            raise LibraryError(message, "fixed")

    @contextmanager
    def _while_pulling(self, repo_id: str) -> Iterator[None]:
        """Keep others from removing a repository from the cache."""
        folder = _folder_name(repo_id)
        with self._changing:
            self._pulling[folder] += 1
        try:
            yield
        finally:
            with self._changing:
                self._pulling[folder] -= 1

    def _files_to_link(self, listed: str, path: Path) -> list[Path]:
        """Return the files of a pulled model, if they are where pulled models are and nobody serves them yet."""
        file = path.parent.resolve() / path.name
        if not file.is_relative_to(hub_cache().resolve()):  # offline, a name may also be that of a file
            message = (
                f"{listed!r} is not in the Hugging Face cache, and only what is there can be served under its name"
            )
            raise LibraryError(message, "unknown")
        other = next((name for name, used in self._named.items() if used.resolve() == file.resolve()), None)
        if other is not None:
            message = f"the file of {listed!r} is served already, as {other!r}"
            raise LibraryError(message, "exists")
        return _files_of(file)

    def _removal(self, files: Sequence[Path]) -> Removal | None:
        """Return what goes from the cache with a model; None if nothing does."""
        target = link_target(files[0])
        if target is None or not target.is_relative_to(hub_cache().resolve()):
            return None
        try:
            removal = plan_removal(str(target))
        except CaudalError:  # it has gone, or is in no place that is ours to delete from
            return None
        except OSError as error:
            message = f"cannot look at the Hugging Face cache: {error.strerror or error}"
            raise LibraryError(message, "disk") from error
        gone = {form for path in (*removal.links, *removal.blobs) for form in (path, path.resolve())}
        others = [link for link in self._folder.links() if link not in files]
        others += [shard for path in self._named.values() for shard in model_shards(path)]
        used = {form for path in others for form in (path, link_target(path), path.parent.resolve() / path.name)}
        used |= {path.resolve() for path in others}
        return None if gone & used else removal

    def _without_places(self, text: str) -> str:
        """Return a message without the server's own paths, which are nobody's business."""
        for place in sorted({str(hub_cache()), str(hub_cache().resolve())}, key=len, reverse=True):
            text = text.replace(place, "the Hugging Face cache")
        return text


def _folder_name(repo_id: str) -> str:
    return f"models--{repo_id.replace('/', '--')}"


def _reason(error: CaudalError) -> str:
    if isinstance(error, ConfigError):
        return "name"
    if isinstance(error, ModelNotFound):
        return "unknown"
    if not isinstance(error, DownloadError):
        return "offline"
    cause = error.__cause__
    if not isinstance(cause, OSError) or cause.errno is None or isinstance(cause, ConnectionError | TimeoutError):
        return "network"
    return "full" if cause.errno in (errno.ENOSPC, errno.EDQUOT) else "disk"


def _files_of(path: Path) -> list[Path]:
    """Return a model's files; those of one that has just gone are named all the same."""
    return model_shards(path) or [path]
