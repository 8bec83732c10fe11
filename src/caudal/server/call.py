"""One HTTP request on its way through the server: what was sent, who sent it, and the models it holds."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, TypeVar

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from caudal.server.problems import ErrorShape, error_response, openai_shape
from caudal.server.request_body import parse_body, read_body
from caudal.server.request_record import RequestRecord, record_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    import msgspec
    from starlette.types import Receive, Scope, Send

    from caudal.server.context import ServerContext
    from caudal.server.loaded_model import LoadedModel
    from caudal.server.settings import ServerSettings

    Handler = Callable[["Call"], Awaitable[Response]]

Body = TypeVar("Body")


class Call:
    """What a handler gets.

    Attributes:
        request: the request.
        context: what all requests share.
        shape: how the API that was called writes an error.
        num_bytes: of the body, once it has been read.
        record: what the log, the metrics and the trace will say of the request.
        tenant: whose request it is: the id of the key that was sent, "" without keys. The scheduler is fair between
            tenants, and the prefix cache does not leak from one to another.
    """

    def __init__(self, request: Request, context: ServerContext, shape: ErrorShape, leases: AsyncExitStack) -> None:
        self.request = request
        self.context = context
        self.shape = shape
        self.num_bytes = 0
        self.tenant: str = request.scope.get("caudal.tenant", "")
        self.record = record_of(request.scope) or RequestRecord(request.scope)
        self.record.tenant = self.tenant
        self._leases = leases

    @property
    def settings(self) -> ServerSettings:
        """The HTTP side's settings."""
        return self.context.settings

    async def body(self, decoder: msgspec.json.Decoder[Body]) -> Body:
        """Return the body as the decoder's type; see read_body and parse_body for what is refused."""
        data = await read_body(self.request, self.settings.max_body_bytes, self.settings.body_timeout_s)
        self.num_bytes = len(data)
        return parse_body(data, decoder)

    async def model(self, name: str | None) -> LoadedModel:
        """Return a model, which stays loaded until the answer has been sent. See ModelDirectory.lease."""
        model = await self._leases.enter_async_context(self.context.models.lease(name))
        self.record.model = model.name
        return model


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
        async with AsyncExitStack() as leases:
            call = Call(request, self._context, self._shape, leases)
            call.record.route = self._path
            response = await self._respond(call)
            await response(scope, receive, send)

    async def _respond(self, call: Call) -> Response:
        try:
            return await self._handler(call)
        except ClientDisconnect:
            return Response(status_code=499)  # nobody reads it
        except Exception as error:  # noqa: BLE001 - the one place where nothing may pass
            return error_response(error, self._shape)
