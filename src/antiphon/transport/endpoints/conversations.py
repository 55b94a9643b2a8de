"""/v1/conversations: bodies and queries in, JSON out; what they mean is service/conversations.py's business."""

from msgspec import Struct

from antiphon.limits import Limits
from antiphon.protocol.decoding.codec import decode_conversation, decode_items, decode_update, encode
from antiphon.protocol.types.conversation import (
    Conversation,
    ConversationDeleted,
    CreateConversation,
    CreateItems,
    UpdateConversation,
)
from antiphon.protocol.types.items import InputItem
from antiphon.protocol.types.lists import ConversationList, IncludeQuery, ItemList, ItemsQuery, ListQuery
from antiphon.service.conversations import Conversations, Place
from antiphon.transport.http.query import read_query
from antiphon.transport.http.request import Request, Route, decoded

_ONE = "/v1/conversations/{conversation_id}"
_ITEMS = f"{_ONE}/items"
_ITEM = f"{_ITEMS}/{{item_id}}"
_EXAMPLE = {"type": "message", "role": "user", "content": "Hello!"}


class ConversationsEndpoint:
    def __init__(self, service: Conversations, limits: Limits) -> None:
        self._service = service
        self._limits = limits

    def routes(self) -> list[Route]:
        return [*self._whole(), *self._of_items()]

    def _whole(self) -> list[Route]:
        return [
            Route(
                method="GET",
                path="/v1/conversations",
                endpoint=self.all,
                summary="List the conversations",
                description="Newest first, unless `order` says otherwise; `last_id` of a page is `after` of the next. "
                "An extension.",
                query=ListQuery,
                gives=ConversationList,
                errors=(400, 404, 503),
            ),
            Route(
                method="POST",
                path="/v1/conversations",
                endpoint=self.create,
                summary="Create a conversation",
                description="With up to 20 items to begin with.",
                takes=CreateConversation,
                takes_nothing=True,
                example={"items": [_EXAMPLE], "metadata": {"topic": "demo"}},
                gives=Conversation,
                errors=(400, 413, 415, 503),
            ),
            Route(
                method="GET",
                path=_ONE,
                endpoint=self.get,
                summary="Retrieve a conversation",
                gives=Conversation,
                errors=(400, 404, 503),
            ),
            Route(
                method="POST",
                path=_ONE,
                endpoint=self.update,
                summary="Update a conversation",
                description="The metadata is merged into what is there; a null deletes its key.",
                takes=UpdateConversation,
                example={"metadata": {"topic": "demo"}},
                gives=Conversation,
                errors=(400, 404, 413, 415, 503),
            ),
            Route(
                method="DELETE",
                path=_ONE,
                endpoint=self.delete,
                summary="Delete a conversation",
                description="Its items are not deleted: others may refer to them.",
                gives=ConversationDeleted,
                errors=(400, 404, 503),
            ),
        ]

    def _of_items(self) -> list[Route]:
        return [
            Route(
                method="POST",
                path=_ITEMS,
                endpoint=self.add,
                summary="Add items to a conversation",
                description="At most 20 at a time. An item_reference adds the item itself, under the id that it has.",
                takes=CreateItems,
                query=IncludeQuery,
                example={"items": [_EXAMPLE]},
                gives=ItemList,
                errors=(400, 404, 413, 415, 503),
            ),
            Route(
                method="GET",
                path=_ITEMS,
                endpoint=self.list,
                summary="List a conversation's items",
                description="Newest first, unless `order` says otherwise; `last_id` of a page is `after` of the next.",
                query=ItemsQuery,
                gives=ItemList,
                errors=(400, 404, 503),
            ),
            Route(
                method="GET",
                path=_ITEM,
                endpoint=self.item,
                summary="Retrieve an item",
                query=IncludeQuery,
                gives=InputItem,
                errors=(400, 404, 503),
            ),
            Route(
                method="DELETE",
                path=_ITEM,
                endpoint=self.delete_item,
                summary="Remove an item from a conversation",
                description="Gives the conversation. In other conversations the item stays.",
                gives=Conversation,
                errors=(400, 404, 503),
            ),
        ]

    async def create(self, request: Request) -> None:
        body = await request.read_body(self._limits) if request.has_body() else b"{}"
        asked, request.ignored = await decoded(body, decode_conversation, self._limits)
        del body  # it may be large, and takes its time to be kept
        await _give(request, await self._service.create(request.tenant, asked))

    async def all(self, request: Request) -> None:
        await _give(request, await self._service.all(request.tenant, read_query(request, ListQuery)))

    async def get(self, request: Request) -> None:
        await _give(request, await self._service.get(self._at(request)))

    async def update(self, request: Request) -> None:
        at = self._at(request)
        body = await request.read_body(self._limits)
        asked, request.ignored = await decoded(body, decode_update, self._limits)
        await _give(request, await self._service.update(at, asked.metadata or {}))

    async def delete(self, request: Request) -> None:
        at = self._at(request)
        await self._service.delete(at)
        await _give(request, ConversationDeleted(id=at.id))

    async def add(self, request: Request) -> None:
        at = self._at(request)
        include = read_query(request, IncludeQuery).include
        asked, ignored = await decoded(await request.read_body(self._limits), decode_items, self._limits)
        request.ignored = [*request.ignored, *ignored]
        await request.reply(200, await self._service.add(at, asked.items, include))

    async def list(self, request: Request) -> None:
        at = self._at(request)
        await request.reply(200, await self._service.page(at, read_query(request, ItemsQuery)))

    async def item(self, request: Request) -> None:
        at = self._at(request)
        include = read_query(request, IncludeQuery).include
        await request.reply(200, await self._service.item(at, request.params["item_id"], include))

    async def delete_item(self, request: Request) -> None:
        at = self._at(request)
        await _give(request, await self._service.delete_item(at, request.params["item_id"]))

    def _at(self, request: Request) -> Place:
        return self._service.at(request.tenant, request.params["conversation_id"])


async def _give(request: Request, value: Struct) -> None:
    await request.reply(200, encode(value))
