"""One HTTP request on its way through the server: what was sent, who sent it, and the models it holds."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, TypeVar

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from caudal.server.early_stream import EarlyStream, wait_alive
from caudal.server.keys.key import INFERENCE, MODELS_WRITE
from caudal.server.model_directory import unknown_model
from caudal.server.problems import ErrorShape, HTTPProblem, error_response, openai_shape
from caudal.server.request_body import parse_body, read_body
from caudal.server.request_record import RequestRecord, record_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Sequence

    import msgspec
    from starlette.types import Receive, Scope, Send

    from caudal.server.context import ServerContext
    from caudal.server.keys.key import Key
    from caudal.server.keys.meter import RequestMeter
    from caudal.server.loaded_model import LoadedModel
    from caudal.server.settings import ServedModel, ServerSettings
    from caudal.server.visit import Visit

    Handler = Callable[["Call"], Awaitable[Response]]

Body = TypeVar("Body")
Result = TypeVar("Result")


class Call:
    """What a handler gets.

    Attributes:
        request: the request.
        context: what all requests share.
        shape: how the API that was called writes an error.
        num_bytes: of the body, once it has been read.
        request_id: made by the server, and told in the response's headers.
        record: what the log, the metrics and the trace will say of the request.
        tenant: whose request it is: the id of the key that was sent, "" without keys. The scheduler is fair between
            tenants, and the prefix cache does not leak from one to another.
        key: the key that was sent; None without keys.
        meter: counts what the request uses; None without the layer that counts.
    """

    def __init__(
        self, request: Request, context: ServerContext, shape: ErrorShape, leases: AsyncExitStack, early: EarlyStream
    ) -> None:
        self.request = request
        self._early = early
        self._has_read = request.method in ("GET", "HEAD")
        self._wants_events = False
        self.context = context
        self.shape = shape
        self.num_bytes = 0
        self.request_id: str = request.scope.get("caudal.request_id", "")
        self.tenant: str = request.scope.get("caudal.tenant", "")
        self.key: Key | None = request.scope.get("caudal.key")
        self.meter: RequestMeter | None = request.scope.get("caudal.meter")
        self._data: bytes | None = None
        self.record = record_of(request.scope) or RequestRecord(request.scope)
        self.record.tenant = self.tenant
        self._leases = leases

    @property
    def settings(self) -> ServerSettings:
        """The HTTP side's settings."""
        return self.context.settings

    async def body(self, decoder: msgspec.json.Decoder[Body]) -> Body:
        """Return the body as the decoder's type; see read_body and parse_body for what is refused."""
        body = parse_body(await self.data(), decoder)
        # Ollama's streams are lines of JSON, in which there is no comment to fill a silence with.
        is_ollama = self.request.scope["path"].startswith("/api/")
        self._wants_events = getattr(body, "stream", False) is True and not is_ollama
        return body

    async def data(self) -> bytes:
        """Return the body as it was sent, however often it is asked for; see read_body for what is refused."""
        if self._data is None:
            self._data = await read_body(self.request, self.settings.max_body_bytes, self.settings.body_timeout_s)
            self._has_read = True
            self.num_bytes = len(self._data)
        return self._data

    async def model(self, name: str | None) -> LoadedModel:
        """Return a model, which stays loaded until the answer has been sent. See ModelDirectory.lease.

        That may take as long as loading a model does: meanwhile a stream gets pings, and a client that leaves is
        noticed, once the body has been read.

        A model that the key may not use is as unknown as one that is not served; no name is the first that it may use.
        """
        served = self.served()
        if not name and self.restricts_models and served:
            name = served[0].name
        asked = self.context.models.find(name)
        if not self._may_use(name, asked):
            raise unknown_model(name, served)
        entering = self._leases.enter_async_context(self.context.models.lease(name))
        model = await self._alive(entering, self._early if self._wants_events else None)
        if not self._may_use(name, model.info):
            raise unknown_model(name, served)
        self.record.model = model.name
        if self.meter is not None:
            self.meter.model = model.name
        return model

    async def model_to_look_at(self, name: str | None, *, loads: bool = True) -> LoadedModel:
        """Return a model of which only facts are wanted: one in memory does not count as used by that.

        Args:
            name: see `model`.
            loads: load it if it is not in memory, and the key could do so by other requests.

        Raises:
            HTTPProblem: 400, it is not in memory and is not to be loaded; else see `model`.
        """
        served = self.served()
        if not name and self.restricts_models and served:
            name = served[0].name
        found = self.context.models.find(name)
        if found is None:
            await self.context.models.refresh()
            found = self.context.models.find(name)
        if found is not None and self._may_use(name, found):
            loaded = next((each for each in self.context.models.loaded() if each.name == found.name), None)
            if loaded is not None:
                return loaded
            if not loads or not (self.key is None or self.key.may(INFERENCE) or self.key.may(MODELS_WRITE)):
                message = f"the model {found.name!r} is not loaded; load it with POST /models/load, or ask it something"
                raise HTTPProblem(400, message, code="model_not_loaded", parameter="model")
        return await self.model(name)

    def outlive(self) -> AsyncExitStack:
        """Hand over what the request holds to work that goes on after its response, and that lets go of it at its end.

        That is the models that it got, and what is done when a request has ended: its tokens are settled, its place
        among its key's parallel requests is free, its use is counted and written down.
        """
        held = self._leases.pop_all()
        visit: Visit | None = self.request.scope.get("caudal.visit")
        if visit is not None:
            held.enter_context(visit.detach())
        return held

    async def while_there(self, work: Coroutine[None, None, Result]) -> Result:
        """Return what work returns, or stop it as soon as the client is gone. Nothing is sent meanwhile.

        Raises:
            ClientDisconnect: nobody waits for the answer any more.
        """
        return await self._alive(work, None)

    async def _alive(self, work: Coroutine[None, None, Result], early: EarlyStream | None) -> Result:
        if not self._has_read:
            return await work
        settings = self.settings
        return await wait_alive(work, self.request.receive, early, settings.first_byte_wait_s, settings.ping_interval_s)

    @property
    def restricts_models(self) -> bool:
        """Whether the key may not use every model."""
        return self.key is not None and "*" not in self.key.models

    def served(self) -> Sequence[ServedModel]:
        """Return the models that the request's key may use, the default first."""
        served = self.context.models.served()
        return [each for each in served if self._may_use(each.name, each)] if self.restricts_models else served

    async def look_for(self, name: str) -> ServedModel:
        """Return what find does, and look for new files before it says that there is no such model."""
        if self.context.models.find(name) is None:
            await self.context.models.refresh()
        return self.find(name)

    def find(self, name: str) -> ServedModel:
        """Return a model that the request may ask for.

        Raises:
            HTTPProblem: 404, the name is unknown, or of a model that the key may not use.
        """
        served = self.served()
        found = self.context.models.find(name)
        if found is None or found not in served:
            raise unknown_model(name, served)
        return found

    def _may_use(self, name: str | None, model: ServedModel | None) -> bool:
        names = (name or "",) if model is None else (model.name, *model.aliases)
        return self.key is None or not self.restricts_models or self.key.may_use(names)

    def priority(self, asked: int | None) -> int:
        """Return the priority of the request in the engine: the key's, or a less urgent one that was asked for."""
        if self.key is None or self.key.is_static or not self.key.id:
            return asked or 0
        return max(self.key.priority, self.key.priority if asked is None else asked)


class Endpoint:
    """A handler as Starlette calls it; whatever it raises becomes an error body of its API.

    Args:
        handler: makes the response, which may do its work while it is sent.
        context: what all requests share.
        shape: how the API writes an error.
        path: the route's, for the metrics and the trace.
    """

    def __init__(
        self, handler: Handler, context: ServerContext, shape: ErrorShape = openai_shape, path: str | None = None
    ) -> None:
        self._handler = handler
        self._context = context
        self._shape = shape
        self._path = path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        request = Request(scope, receive, send)
        early = EarlyStream(send)
        async with AsyncExitStack() as leases:
            call = Call(request, self._context, self._shape, leases, early)
            call.record.route = self._path
            response = await self._respond(call)
            await response(scope, receive, early)

    async def _respond(self, call: Call) -> Response:
        try:
            return await self._handler(call)
        except ClientDisconnect:
            return Response(status_code=499)  # nobody reads it
        except Exception as error:  # noqa: BLE001 - the one place where nothing may pass
            return error_response(error, call.shape, call.request_id)
