"""What the app keeps of responses: those that are stored, those that are being made, and what they began with."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from caudal.server.problems import HTTPProblem
from caudal.server.responses.background import Runs
from caudal.server.responses.items import new_id
from caudal.server.responses.request_protocol import ContentPart, InputItem
from caudal.server.responses.store import ResponseStore, StoredResponse

if TYPE_CHECKING:
    from collections.abc import Sequence

    from caudal.server.responses.resource import ResponseObject

_encode = msgspec.json.Encoder().encode
_decode_items = msgspec.json.Decoder(list[InputItem]).decode


class KeptResponses:
    """One app's responses."""

    def __init__(self) -> None:
        self.store = ResponseStore()
        self.runs = Runs()

    def keep(
        self, tenant: str, response: ResponseObject, own: Sequence[InputItem], earlier: Sequence[InputItem]
    ) -> None:
        """Store a response that has ended: its own input, and after earlier items what it continues."""
        items = [*earlier, *own, *response.output]
        self.store.put(
            tenant,
            response.id,
            StoredResponse(
                body=_encode(response),
                input=_encode(list(own)),
                conversation=_encode(items),
                item_ids=frozenset(item.id for item in items if item.id),
            ),
        )

    def conversation(self, tenant: str, response_id: str) -> list[InputItem]:
        """Return all items up to a response's output, in the words of OpenAI's API if there is no such response.

        Raises:
            HTTPProblem: 400, it is not stored.
        """
        stored = self.store.get(tenant, response_id)
        if stored is None:
            message = (
                f"Previous response with id '{response_id[:128]}' not found. This server keeps responses in memory, "
                "up to a limit, and only those whose request did not say store false; send the conversation instead."
            )
            raise HTTPProblem(400, message, code="previous_response_not_found", parameter="previous_response_id")
        return _decode_items(stored.conversation)

    def resolved(self, tenant: str, given: Sequence[InputItem], earlier: Sequence[InputItem]) -> list[InputItem]:
        """Return a request's items with ids; references become the items that they name, if those are not there yet.

        Raises:
            HTTPProblem: 400, an item is not known.
        """
        there = {item.id for item in earlier}
        known: dict[str, InputItem] = {}  # a conversation is decoded once, however many references lead into it
        items: list[InputItem] = []
        for item in given:
            if item.type != "item_reference" and (item.type is not None or item.role is not None):
                items.append(_with_id(item))
            elif item.id is None or item.id not in there:
                items.append(self._referred(tenant, item.id or "", known))
        return items

    def _referred(self, tenant: str, item_id: str, known: dict[str, InputItem]) -> InputItem:
        if item_id not in known:
            stored = self.store.holder(tenant, item_id)
            items = _decode_items(stored.conversation) if stored is not None else []
            known.update({item.id: item for item in reversed(items) if item.id})
        found = known.get(item_id)
        if found is None:
            message = (
                f"Item with id '{item_id[:128]}' not found. This server knows the items of responses that it still "
                "keeps; send the item itself."
            )
            raise HTTPProblem(400, message, code="item_not_found", parameter="input")
        return found

    async def close(self) -> None:
        """Cancel what is being made."""
        await self.runs.close()


def _with_id(item: InputItem) -> InputItem:
    """Return an item with the fields that OpenAI's list of input items has."""
    kind = item.type or "message"
    prefix = {"message": "msg", "function_call": "fc", "reasoning": "rs"}.get(kind, "item")
    return msgspec.structs.replace(
        item, type=kind, id=item.id or new_id(prefix), status=item.status or "completed", content=_parts(item)
    )


def _parts(item: InputItem) -> str | list[ContentPart] | None:
    if not isinstance(item.content, str) or item.role is None:
        return item.content
    if item.role == "assistant":
        return [ContentPart(type="output_text", text=item.content, annotations=[])]
    return [ContentPart(type="input_text", text=item.content)]
