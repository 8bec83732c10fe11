"""A running server as the verbs `ps`, `stop` and `launch` ask it, over HTTP."""

from __future__ import annotations

import http.client
import os
import urllib.error
import urllib.request
from http import HTTPStatus
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import urlsplit

import click
import msgspec

from caudal.cli.options import chain
from caudal.errors import CaudalError, ConfigError

if TYPE_CHECKING:
    from caudal.cli.options import Decorator

Result = TypeVar("Result")
DEFAULT_URL = "http://127.0.0.1:8000"
_OLLAMA_PORT = 11434
_TIMEOUT_S = 600
_LOOPBACK = ("127.0.0.1", "::1", "localhost")


class _ErrorDetail(msgspec.Struct):
    message: str


class _ErrorBody(msgspec.Struct):
    error: _ErrorDetail


server_options: Decorator = chain(
    click.option(
        "--url", metavar="URL", help="The server.  [default: CAUDAL_URL, OLLAMA_HOST, or " + DEFAULT_URL + "]"
    ),
    click.option("--api-key", metavar="KEY", help="Its key, if it has one.  [default: CAUDAL_API_KEY]"),
)


def server_url(given: str | None) -> str:
    """Return the address of the server to ask, without a slash at the end.

    OLLAMA_HOST may be a host, or a host and a port, and 0.0.0.0 in it means this machine.

    Raises:
        ConfigError: it is no address over HTTP.
    """
    ollama = os.environ.get("OLLAMA_HOST", "").strip()
    address = given or os.environ.get("CAUDAL_URL") or (_ollama_url(ollama) if ollama else DEFAULT_URL)
    try:
        parts = urlsplit(address)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable:
        message = f"the server's address is {address!r}; expected one like {DEFAULT_URL}"
        raise ConfigError(message)
    return address.rstrip("/")


def _ollama_url(host: str) -> str:
    url = host if "://" in host else f"http://{host}"
    try:
        parts = urlsplit(url)
        name = "127.0.0.1" if parts.hostname in (None, "", "0.0.0.0") else parts.hostname  # noqa: S104 - compared
        standard = None if parts.scheme == "https" else _OLLAMA_PORT
        port = parts.port or ({"http": 80, "https": 443}.get(parts.scheme) if "://" in host else standard)
    except ValueError:
        return url
    name = f"[{name}]" if name is not None and ":" in name else name
    return f"{parts.scheme}://{name}:{port}"


class RunningServer:
    """Asks one server.

    Args:
        url: its address; None looks into the environment.
        api_key: its key; None looks into the environment.

    Attributes:
        url: its address, without a slash at the end.
        key: its key, "" if there is none.

    Raises:
        ConfigError: the address is none.
    """

    def __init__(self, url: str | None, api_key: str | None) -> None:
        self.url = server_url(url)
        self.key = api_key or os.environ.get("CAUDAL_API_KEY", "")

    def ask(
        self, method: str, path: str, answer: type[Result], body: object = None, *, timeout_s: float = _TIMEOUT_S
    ) -> Result:
        """Return what the server answers.

        Raises:
            CaudalError: nobody answers, or it is a refusal: says which.
        """
        headers = {"accept": "application/json", "content-type": "application/json"}
        if self.key:
            headers["authorization"] = f"Bearer {self.key}"
        data = None if body is None else msgspec.json.encode(body)
        request = urllib.request.Request(self.url + path, data, headers, method=method)  # noqa: S310 - HTTP, see above
        try:
            with self._opener().open(request, timeout=timeout_s) as response:
                return msgspec.json.decode(response.read(), type=answer)
        except urllib.error.HTTPError as error:
            with error:
                raise CaudalError(_refusal(self.url, error.code, error.read())) from error
        except (OSError, http.client.HTTPException) as error:
            reason = error.reason if isinstance(error, urllib.error.URLError) else error
            message = (
                f"no server answers at {self.url}: {reason}; start one with `caudal serve MODEL`, or give its --url"
            )
            raise CaudalError(message) from error
        except msgspec.MsgspecError as error:
            message = f"what answers at {self.url} is no server of Caudal: {error}; give another --url"
            raise CaudalError(message) from error

    def _opener(self) -> urllib.request.OpenerDirector:
        here = urlsplit(self.url).hostname in _LOOPBACK
        return urllib.request.build_opener(*([urllib.request.ProxyHandler({})] if here else []))


def _refusal(url: str, status: int, body: bytes) -> str:
    if status == HTTPStatus.UNAUTHORIZED:
        return f"the server at {url} wants a key that it knows; give it with --api-key, or in CAUDAL_API_KEY"
    try:
        return msgspec.json.decode(body, type=_ErrorBody).error.message
    except msgspec.MsgspecError:
        return f"the server at {url} answered {status}; is it one of Caudal?"
