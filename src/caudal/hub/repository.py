"""A repository of models on the Hugging Face hub, or on another server that speaks as it does (HF_ENDPOINT).

The only place that imports huggingface_hub: its client finds the user's token, proxies and certificates. Its own
downloads neither resume after the program has ended nor check what came; see partial_file.

Source: huggingface_hub's HfApi.model_info and hf_hub_url; RFC 9110, range requests.
"""

from __future__ import annotations

import os
import re
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

from caudal import __version__
from caudal.errors import CaudalError, ModelNotFound
from caudal.hub.partial_file import DownloadCutShort, DownloadError, WantedFile

if TYPE_CHECKING:
    from collections.abc import Iterator

DEFAULT_ENDPOINT = "https://huggingface.co"
_TIMEOUT_S = 30.0
_COMMIT = re.compile(r"[0-9a-f]{40}")
_DIGEST = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_TRUE = frozenset({"1", "on", "yes", "true"})
_MAX_REASON_CHARS = 300


def endpoint() -> str:
    """Return the hub's address."""
    return (os.environ.get("HF_ENDPOINT") or DEFAULT_ENDPOINT).rstrip("/")


def is_offline() -> bool:
    """Whether the user has forbidden the network."""
    names = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
    return any(os.environ.get(name, "").lower() in _TRUE for name in names)


@dataclass(frozen=True, kw_only=True)
class Repository:
    """What a repository holds.

    Attributes:
        repo_id: "ORG/NAME".
        commit: 40 hex digits.
        files: their names, as paths in the repository, and what they must be.
    """

    repo_id: str
    commit: str
    files: dict[str, WantedFile]


class FileOnTheHub:
    """One file of a repository, as a Source.

    Args:
        repository: where it is.
        name: which it is.
    """

    def __init__(self, repository: Repository, name: str) -> None:
        from huggingface_hub import hf_hub_url  # noqa: PLC0415 - only to pull
        from huggingface_hub.utils import build_hf_headers, get_session  # type: ignore[attr-defined]  # noqa: PLC0415

        self._name = name
        self._session: Any = get_session()
        self._headers = build_hf_headers(library_name="caudal", library_version=__version__)
        self._url = hf_hub_url(repository.repo_id, name, revision=repository.commit, endpoint=endpoint())

    @contextmanager
    def read_from(self, offset: int) -> Iterator[tuple[int, Iterator[bytes]]]:
        """Ask for the bytes from an offset on; see Source."""
        headers = {**self._headers, "accept-encoding": "identity"}
        if offset:
            headers["range"] = f"bytes={offset}-"
        asking = self._session.stream("GET", self._url, headers=headers, follow_redirects=True, timeout=_TIMEOUT_S)
        try:
            response = asking.__enter__()
        except Exception as error:  # every HTTP library has exceptions of its own
            raise DownloadCutShort(_reason(error)) from error
        try:
            self._check_status(response.status_code)
            start = offset if response.status_code == HTTPStatus.PARTIAL_CONTENT else 0
            yield start, _chunks(response)
        finally:
            asking.__exit__(None, None, None)

    def _check_status(self, status: int) -> None:
        if status in (HTTPStatus.OK, HTTPStatus.PARTIAL_CONTENT):
            return
        message = f"{self._name}: {endpoint()} answered {status}"
        if status >= HTTPStatus.INTERNAL_SERVER_ERROR or status in (408, 429):
            raise DownloadCutShort(message)
        raise DownloadError(message)


def _chunks(response: Any) -> Iterator[bytes]:
    try:
        yield from response.iter_bytes()  # as they come: a full chunk would be lost with the connection
    except Exception as error:
        raise DownloadCutShort(_reason(error)) from error


def _reason(error: Exception) -> str:
    return " ".join(str(error).split())[:_MAX_REASON_CHARS] or type(error).__name__


def look_up(repo_id: str) -> Repository:
    """Ask the hub what a repository holds now.

    Raises:
        ModelNotFound: there is no such repository, or it is not for everybody.
        DownloadError: the hub cannot be reached or answers nonsense.
    """
    try:
        from huggingface_hub import HfApi  # noqa: PLC0415 - only to pull
        from huggingface_hub.errors import GatedRepoError, HFValidationError, RepositoryNotFoundError  # noqa: PLC0415
    except ImportError as error:
        message = f"to pull a model takes the package huggingface_hub, which cannot be used here: {error}"
        raise CaudalError(message) from error
    api = HfApi(endpoint=endpoint(), library_name="caudal", library_version=__version__)
    try:
        info = api.model_info(repo_id, files_metadata=True, timeout=_TIMEOUT_S)
    except GatedRepoError as error:
        message = (
            f"{repo_id} is only for those who have accepted its licence: do so at {endpoint()}/{repo_id}, and set "
            "HF_TOKEN"
        )
        raise ModelNotFound(message) from error
    except RepositoryNotFoundError as error:
        message = (
            f"{endpoint()} has no repository {repo_id!r}, or it is private; check the name, or set HF_TOKEN if it is "
            "yours"
        )
        raise ModelNotFound(message) from error
    except HFValidationError as error:
        message = f"{repo_id!r} is no name of a repository: {_reason(error)}"
        raise ModelNotFound(message) from error
    except Exception as error:  # every HTTP library has exceptions of its own
        message = f"cannot ask {endpoint()} about {repo_id}: {_reason(error)}"
        raise DownloadError(message) from error
    return repository_of(repo_id, info.sha, info.siblings or [])


def repository_of(repo_id: str, commit: str | None, siblings: list[Any]) -> Repository:
    """Return what the hub's answer says. Names that lead out of the repository are not taken.

    Raises:
        DownloadError: it makes no sense.
    """
    if commit is None or not _COMMIT.fullmatch(commit):
        message = f"{endpoint()} gives {repo_id} the commit {commit!r}; expected 40 hex digits"
        raise DownloadError(message)
    files = {}
    for sibling in siblings:
        name, lfs = sibling.rfilename, sibling.lfs
        digest = lfs.sha256 if lfs is not None else sibling.blob_id
        size = lfs.size if lfs is not None else sibling.size
        path = PurePosixPath(name)
        is_inside = not path.is_absolute() and not {"..", "."}.intersection(name.split("/")) and "\\" not in name
        if is_inside and isinstance(size, int) and size >= 0 and _DIGEST.fullmatch(digest or ""):
            files[name] = WantedFile(name=name, num_bytes=size, digest=digest)
    return Repository(repo_id=repo_id, commit=commit, files=files)
