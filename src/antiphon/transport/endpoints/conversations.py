"""/v1/conversations: decodes bodies and queries and encodes replies; service/conversations.py implements the
operations.
"""

from msgspec import Struct

from antiphon.limits import Limits
from antiphon.protocol.decoding.codec import decode_conversation, decode_conversation_update, decode_items, encode
from antiphon.protocol.types.conversation import (
    Conversation,
    ConversationDeleted,
    CreateConversation,
    CreateItems,
    UpdateConversation,
)
from antiphon.protocol.types.items import InputItem
from antiphon.protocol.types.lists import ConversationList, IncludeQuery, ItemList, ItemsQuery, ListQuery
from antiphon.service.conversations import ConversationKey, Conversations
from antiphon.transport.http.query import read_query
from antiphon.transport.http.request import Request, decode_body
from antiphon.transport.middleware.routing import Route

_CONVERSATION = "/v1/conversations/{conversation_id}"
_ITEMS = f"{_CONVERSATION}/items"
_ITEM = f"{_ITEMS}/{{item_id}}"
_EXAMPLE = {"type": "message", "role": "user", "content": "Hello!"}


class ConversationsEndpoint(Struct, frozen=True):
    service: Conversations
    limits: Limits

    def routes(self) -> list[Route]:
        return [*self._conversation_routes(), *self._item_routes()]

    def _conversation_routes(self) -> list[Route]:
        return [
            Route(
                method="GET",
                path="/v1/conversations",
                endpoint=self.list_all,
                summary="List conversations",
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
                description="With up to 20 initial items.",
                takes=CreateConversation,
                takes_nothing=True,
                example={"items": [_EXAMPLE], "metadata": {"topic": "demo"}},
                gives=Conversation,
                errors=(400, 413, 415, 503),
            ),
            Route(
                method="GET",
                path=_CONVERSATION,
                endpoint=self.get,
                summary="Retrieve a conversation",
                gives=Conversation,
                errors=(400, 404, 503),
            ),
            Route(
                method="POST",
                path=_CONVERSATION,
                endpoint=self.update,
                summary="Update a conversation",
                description="The metadata is merged into the existing metadata; a null deletes its key.",
                takes=UpdateConversation,
                example={"metadata": {"topic": "demo"}},
                gives=Conversation,
                errors=(400, 404, 413, 415, 503),
            ),
            Route(
                method="DELETE",
                path=_CONVERSATION,
                endpoint=self.delete,
                summary="Delete a conversation",
                description="Its items are not deleted: other conversations may refer to them.",
                gives=ConversationDeleted,
                errors=(400, 404, 503),
            ),
        ]

    def _item_routes(self) -> list[Route]:
        return [
            Route(
                method="POST",
                path=_ITEMS,
                endpoint=self.add_items,
                summary="Add items to a conversation",
                description="At most 20 at a time. An item_reference adds the referenced item itself, with its id.",
                takes=CreateItems,
                query=IncludeQuery,
                example={"items": [_EXAMPLE]},
                gives=ItemList,
                errors=(400, 404, 413, 415, 503),
            ),
            Route(
                method="GET",
                path=_ITEMS,
                endpoint=self.list_items,
                summary="List a conversation's items",
                description="Newest first, unless `order` says otherwise; `last_id` of a page is `after` of the next.",
                query=ItemsQuery,
                gives=ItemList,
                errors=(400, 404, 503),
            ),
            Route(
                method="GET",
                path=_ITEM,
                endpoint=self.get_item,
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
                description="Returns the conversation. The item stays in other conversations.",
                gives=Conversation,
                errors=(400, 404, 503),
            ),
        ]

    async def create(self, request: Request) -> None:
        body = await request.read_body(self.limits) if request.has_body() else b"{}"
        parsed, request.ignored = await decode_body(body, decode_conversation, self.limits)
        del body  # it may be large, and storing it takes time
        await _reply_json(request, await self.service.create(request.tenant, parsed))

    async def list_all(self, request: Request) -> None:
        await _reply_json(
            request, await self.service.list_conversations(request.tenant, read_query(request, ListQuery))
        )

    async def get(self, request: Request) -> None:
        await _reply_json(request, await self.service.get(self._locate(request)))

    async def update(self, request: Request) -> None:
        at = self._locate(request)
        body = await request.read_body(self.limits)
        parsed, request.ignored = await decode_body(body, decode_conversation_update, self.limits)
        await _reply_json(request, await self.service.update(at, parsed.metadata or {}))

    async def delete(self, request: Request) -> None:
        at = self._locate(request)
        await self.service.delete(at)
        await _reply_json(request, ConversationDeleted(id=at.id))

    async def add_items(self, request: Request) -> None:
        at = self._locate(request)
        include = read_query(request, IncludeQuery).include
        parsed, ignored = await decode_body(await request.read_body(self.limits), decode_items, self.limits)
        request.ignored = [*request.ignored, *ignored]
        await request.reply(200, await self.service.add_items(at, parsed.items, include))

    async def list_items(self, request: Request) -> None:
        at = self._locate(request)
        await request.reply(200, await self.service.list_items(at, read_query(request, ItemsQuery)))

    async def get_item(self, request: Request) -> None:
        at = self._locate(request)
        include = read_query(request, IncludeQuery).include
        await request.reply(200, await self.service.get_item(at, request.params["item_id"], include))

    async def delete_item(self, request: Request) -> None:
        at = self._locate(request)
        await _reply_json(request, await self.service.delete_item(at, request.params["item_id"]))

    def _locate(self, request: Request) -> ConversationKey:
        return self.service.resolve_key(request.tenant, request.params["conversation_id"])


async def _reply_json(request: Request, value: Struct) -> None:
    await request.reply(200, encode(value))
