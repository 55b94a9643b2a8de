"""History of a request: the responses that it continues, its conversation, and the items that it references.

Finished responses never change, so recently continued chains are cached. The cache never revives deleted responses: the
store verifies the parent, in `begin` at the latest.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress

import msgspec

from antiphon.core.deltas import ToolOutputContent
from antiphon.core.replay import UnreadableLog, read_tool_outputs
from antiphon.errors import InvalidValue, UnknownConversation, UnknownPrevious
from antiphon.ids import is_id, is_item_id, parse_response_id, quote_id
from antiphon.offload import run_sized
from antiphon.protocol.decoding.codec import DecodedRequest
from antiphon.protocol.decoding.stored_items import is_reference
from antiphon.protocol.types.items import CodeInterpreterCall, FileSearchCall, InputItem, WebSearchCall
from antiphon.protocol.types.request import CreateResponse
from antiphon.protocol.types.response import Response
from antiphon.service.persistence.history_cache import ChainCache, ChainNode
from antiphon.service.persistence.rows import decode_items, decode_status
from antiphon.stores.base import RUNNING_STATUSES, ChainLink
from antiphon.stores.sql.store import Store
from antiphon.tools.untrusted_text import drop_markers

Items = tuple[InputItem, ...]

CACHE_BYTES = 64 * 1024 * 1024
_MAX_LOGS = 20  # that are read for what models received of code and searches

_RUN_HERE = frozenset({CodeInterpreterCall, FileSearchCall, WebSearchCall})
_item_decoder = msgspec.json.Decoder(InputItem)


class HistoryLoader:
    def __init__(self, store: Store, cache_bytes: int = CACHE_BYTES) -> None:
        self._store = store
        self._chains = ChainCache(cache_bytes)

    async def load_earlier(self, tenant: str, request: CreateResponse, response_id: str | None = None) -> Items:
        """Return all items before the request's own input. `response_id`: the id of its row, if it has one already.

        Raises UnknownPrevious, UnknownConversation, and InvalidValue for a response that is still running.
        """
        if request.conversation is not None:
            items = await self._load_conversation(tenant, request.conversation.id)
            return items if response_id is None else _drop_later(items, response_id)
        if request.previous_response_id is None:
            return ()
        if response_id is not None:
            return await self._load_ancestors(tenant, response_id)
        return await self._load_chain(tenant, request.previous_response_id, verify=request.store is False)

    async def resolve_references(self, tenant: str, items: Sequence[InputItem]) -> list[InputItem]:
        """Replace each item_reference by the item of the stored response or conversation that it references."""
        items_by_response: dict[str, dict[str, InputItem]] = {}
        return [
            await self._resolve_reference(tenant, index, str(item.id), items_by_response)
            if is_reference(item)
            else item
            for index, item in enumerate(items)
        ]

    async def load_tool_outputs(self, tenant: str, items: Sequence[InputItem]) -> Mapping[str, ToolOutputContent]:
        """Return what models received of code and searches, by item id, where clients have not included the outputs.

        Only those of the latest responses are read; of others, models read the calls alone.
        """
        calls = [item for item in items if type(item) in _RUN_HERE and _lacks_output(item)]
        response_ids = dict.fromkeys([parse_response_id(str(call.id)) for call in reversed(calls)])
        outputs: dict[str, str] = {}
        for response_id in filter(None, [*response_ids][:_MAX_LOGS]):
            row = await self._store.get(tenant, response_id, with_request=False)
            if row is not None and row.packed_log is not None:
                with suppress(UnreadableLog):
                    outputs |= await run_sized(len(row.response), read_tool_outputs, row.packed_log, row.response)
        searches = {str(call.id) for call in calls if not isinstance(call, CodeInterpreterCall)}
        return {key: drop_markers(text) if key in searches else text for key, text in outputs.items()}

    def remember(self, tenant: str, response: Response, decoded: DecodedRequest, size: int) -> None:
        """Cache a stored response if it continues a cached one; most others are never continued."""
        if (parent := self._chains.find(tenant, decoded.request.previous_response_id or "")) is not None:
            items = (*decoded.request.input, *response.output)
            self._chains.add(ChainNode(tenant, response.id, items, size, parent))
            self._chains.trim()

    def forget(self, tenant: str, response_id: str) -> None:
        """Remove a deleted response from the cache. Cached responses that continue it still hold its items."""
        self._chains.forget(tenant, response_id)

    async def _load_chain(self, tenant: str, response_id: str, verify: bool) -> Items:
        """`verify`: check here that the response still exists, because nothing will be written."""
        if (node := self._chains.find(tenant, response_id)) is None:
            node = await self._read_chain(tenant, response_id)
        elif verify and await self._store.get(tenant, response_id, with_request=False) is None:
            raise _unknown_error(response_id)
        items = self._chains.build_history(node)
        self._chains.trim()
        return items

    async def _read_chain(self, tenant: str, response_id: str) -> ChainNode:
        cached_ids = self._chains.ids(tenant)
        links = await self._read_links(tenant, response_id, cached_ids)
        turns = await _decode_turns(links)
        parent = self._chains.find(tenant, links[-1].previous or "")
        if parent is None and links[-1].previous is not None and cached_ids:
            # A cached ancestor was evicted meanwhile: read the complete chain.
            links = await self._read_links(tenant, response_id, frozenset())
            turns = await _decode_turns(links)
        if parent is None and links[-1].previous is not None:
            raise _unknown_error(response_id)
        for link, items in zip(reversed(links), reversed(turns), strict=True):
            size = len(link.request) + len(link.response)
            parent = self._chains.add(ChainNode(tenant, link.id, items, size, parent))
        assert parent is not None
        return parent

    async def _read_links(self, tenant: str, response_id: str, cached_ids: frozenset[str]) -> list[ChainLink]:
        links = await self._store.chain(tenant, response_id, cached_ids) if is_id(response_id, "resp") else []
        if not links:
            raise _unknown_error(response_id)
        if (status := decode_status(links[0].response)) in RUNNING_STATUSES:
            raise InvalidValue(
                f"The response '{response_id}' is still {status}; it can be continued once it has ended.",
                param="previous_response_id",
            )
        return links

    async def _load_ancestors(self, tenant: str, response_id: str) -> Items:
        """Load the items before a response. Deleted ancestors are retained for it and can be read only through it."""
        if not (links := (await self._store.chain(tenant, response_id))[1:]):
            raise UnknownPrevious(
                "The previous response of this response no longer exists.", param="previous_response_id"
            )
        return tuple([item for items in reversed(await _decode_turns(links)) for item in items])

    async def _load_conversation(self, tenant: str, conversation_id: str) -> Items:
        items = await self._store.all_items(tenant, conversation_id) if is_id(conversation_id, "conv") else None
        if items is None:
            raise UnknownConversation(f"There is no conversation {quote_id(conversation_id)}.", param="conversation")
        return await run_sized(sum(map(len, items)), _decode_items, items)

    async def _resolve_reference(
        self, tenant: str, index: int, item_id: str, items_by_response: dict[str, dict[str, InputItem]]
    ) -> InputItem:
        response_id = parse_response_id(item_id)
        if response_id is not None and response_id not in items_by_response:
            items_by_response[response_id] = await self._load_items(tenant, response_id)
        if response_id is not None and item_id in items_by_response[response_id]:
            return items_by_response[response_id][item_id]
        item = await self._store.find_item(tenant, item_id) if is_item_id(item_id) else None
        if item is None:
            raise InvalidValue(f"There is no item {quote_id(item_id)}.", param=f"input[{index}].id")
        return _decode_items([item])[0]

    async def _load_items(self, tenant: str, response_id: str) -> dict[str, InputItem]:
        if (row := await self._store.get(tenant, response_id)) is None:
            return {}
        items = await run_sized(len(row.request) + len(row.response), decode_items, (row.request, row.response))
        return {str(item.id): item for item in items}


def _drop_later(items: Items, response_id: str) -> Items:
    """Drop the items of a response, and of those that began after it, from its conversation."""
    return tuple([item for item in items if (parse_response_id(str(item.id)) or "") < response_id])


def _lacks_output(item: InputItem) -> bool:
    match item:
        case CodeInterpreterCall(outputs=None) | FileSearchCall(results=None) | WebSearchCall():
            return True
    return False


def _unknown_error(response_id: str) -> UnknownPrevious:
    return UnknownPrevious(
        f"Previous response with id {quote_id(response_id)} not found.", param="previous_response_id"
    )


async def _decode_turns(links: Sequence[ChainLink]) -> list[Items]:
    size = sum([len(link.request) + len(link.response) for link in links])
    return await run_sized(size, lambda: [decode_items((link.request, link.response)) for link in links])


def _decode_items(items: Sequence[bytes]) -> Items:
    return tuple([_item_decoder.decode(item) for item in items])
