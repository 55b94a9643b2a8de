"""What came before a request: the responses it continues, its conversation, the items it refers to.

A response that has ended never changes, so chains that were continued lately are remembered. Nothing remembered brings
back what was deleted: the store says whether a parent is still there, in `begin` at the latest.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

import msgspec

from antiphon.errors import InvalidValue, UnknownConversation, UnknownPrevious
from antiphon.ids import home, is_id, is_item_id
from antiphon.protocol.decoding.codec import Decoded
from antiphon.protocol.types.items import InputItem, ItemReference
from antiphon.protocol.types.request import CreateResponse
from antiphon.protocol.types.response import Response
from antiphon.service.persistence.chain_cache import Chains, Node
from antiphon.service.persistence.stored_request import all_items, status_of
from antiphon.stores.base import RUNNING, Link, Store

T = TypeVar("T")
U = TypeVar("U")
Items = tuple[InputItem, ...]

CACHE_BYTES = 64 * 1024 * 1024
_AT_ONCE = 256 * 1024  # bytes that are decoded where they are asked for; more goes to a thread
_SHOWN = 64  # characters of what was sent

_lists = msgspec.json.Decoder(list[InputItem])


class Past:
    def __init__(self, store: Store, cache_bytes: int = CACHE_BYTES) -> None:
        self._store = store
        self._chains = Chains(cache_bytes)

    async def earlier(self, tenant: str, request: CreateResponse, response_id: str | None = None) -> Items:
        """All items before the request's own input. `response_id`: of its row, if it has one already.

        Raises UnknownPrevious, UnknownConversation, and InvalidValue for a response that still runs.
        """
        if request.conversation is not None:
            return await self._conversation(tenant, request.conversation.id)
        if request.previous_response_id is None:
            return ()
        if response_id is not None:
            return await self._before(tenant, response_id)
        return await self._previous(tenant, request.previous_response_id, sure=request.store is False)

    async def resolve(self, tenant: str, items: Sequence[InputItem]) -> list[InputItem]:
        """The items, each item_reference replaced by what it refers to in any stored response or conversation."""
        homes: dict[str, dict[str, InputItem]] = {}
        return [
            await self._referred(tenant, index, str(item.id), homes) if type(item) is ItemReference else item
            for index, item in enumerate(items)
        ]

    def remember(self, tenant: str, response: Response, decoded: Decoded, size: int) -> None:
        """It is in the store. Only what continues another is kept in mind: most others are never continued."""
        previous = decoded.request.previous_response_id
        parent = None if previous is None else self._chains.find(tenant, previous)
        if parent is not None:
            items = (*decoded.request.input, *response.output)
            self._chains.add(Node(tenant, response.id, items, size, parent))
            self._chains.trim()

    def forget(self, tenant: str, response_id: str) -> None:
        """It was deleted; what is known to continue it keeps it."""
        self._chains.forget(tenant, response_id)

    async def _previous(self, tenant: str, response_id: str, sure: bool) -> Items:
        """`sure`: nothing is going to be written, so it is here that the store is asked."""
        known = self._chains.find(tenant, response_id)
        if known is None:
            known = await self._read(tenant, response_id)
        elif sure and await self._store.get(tenant, response_id) is None:
            raise _unknown(response_id)
        whole = self._chains.whole(known)
        self._chains.trim()
        return whole

    async def _read(self, tenant: str, response_id: str) -> Node:
        known = self._chains.ids(tenant)
        links = await self._links(tenant, response_id, known)
        turns = await _aside(_turns, links, _size(links))
        parent = self._parent(tenant, links)
        if parent is None and links[-1].previous is not None and known:
            # What was known has been forgotten meanwhile.
            links = await self._links(tenant, response_id, frozenset())
            turns = await _aside(_turns, links, _size(links))
        if parent is None and links[-1].previous is not None:
            raise _unknown(response_id)
        for link, items in zip(reversed(links), reversed(turns), strict=True):
            size = len(link.request) + len(link.response)
            parent = self._chains.add(Node(tenant, link.id, items, size, parent))
        assert parent is not None
        return parent

    async def _links(self, tenant: str, response_id: str, known: frozenset[str]) -> list[Link]:
        links = await self._store.chain(tenant, response_id, known) if is_id(response_id, "resp") else []
        if not links:
            raise _unknown(response_id)
        if (status := status_of(links[0].response)) in RUNNING:
            raise InvalidValue(
                f"The response '{response_id}' is still {status}: it can be continued when it has ended.",
                param="previous_response_id",
            )
        return links

    def _parent(self, tenant: str, links: Sequence[Link]) -> Node | None:
        previous = links[-1].previous
        return None if previous is None else self._chains.find(tenant, previous)

    async def _before(self, tenant: str, response_id: str) -> Items:
        """Its ancestors may have been deleted since it began: they are kept for it, and found only from it."""
        links = (await self._store.chain(tenant, response_id))[1:]
        if not links:
            raise UnknownPrevious("What this response continues is gone.", param="previous_response_id")
        turns = await _aside(_turns, links, _size(links))
        return tuple([item for items in reversed(turns) for item in items])

    async def _conversation(self, tenant: str, conversation_id: str) -> Items:
        items = await self._store.all_items(tenant, conversation_id) if is_id(conversation_id, "conv") else None
        if items is None:
            raise UnknownConversation(f"There is no conversation {conversation_id[:_SHOWN]!r}.", param="conversation")
        return await _aside(_decoded, items, sum(map(len, items)))

    async def _referred(self, tenant: str, index: int, name: str, homes: dict[str, dict[str, InputItem]]) -> InputItem:
        place = home(name)
        if place is not None and place not in homes:
            homes[place] = await self._items(tenant, place)
        if place is not None and name in homes[place]:
            return homes[place][name]
        item = await self._store.find_item(tenant, name) if is_item_id(name) else None
        if item is None:
            raise InvalidValue(f"There is no item {name[:_SHOWN]!r}.", param=f"input[{index}].id")
        return _decoded([item])[0]

    async def _items(self, tenant: str, response_id: str) -> dict[str, InputItem]:
        row = await self._store.get(tenant, response_id)
        if row is None:
            return {}
        items = await _aside(all_items, (row.request, row.response), len(row.request) + len(row.response))
        return {str(item.id): item for item in items}


def _unknown(response_id: str) -> UnknownPrevious:
    return UnknownPrevious(
        f"Previous response with id {response_id[:_SHOWN]!r} not found.", param="previous_response_id"
    )


def _turns(links: Sequence[Link]) -> list[Items]:
    return [all_items((link.request, link.response)) for link in links]


def _size(links: Iterable[Link]) -> int:
    return sum([len(link.request) + len(link.response) for link in links])


def _decoded(items: Sequence[bytes]) -> Items:
    return tuple(_lists.decode(b"[" + b",".join(items) + b"]"))


async def _aside(read: Callable[[T], U], given: T, size: int) -> U:
    """In a thread if it is much, so that others need not wait for it."""
    return read(given) if size <= _AT_ONCE else await asyncio.to_thread(read, given)
