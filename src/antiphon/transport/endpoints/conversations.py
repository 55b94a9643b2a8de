"""/v1/conversations: decodes requests and encodes replies; service/conversations.py implements the operations."""

from msgspec import Struct

from antiphon.limits import Limits
from antiphon.protocol.decoding.codec import decode_conversation, decode_conversation_update, decode_items
from antiphon.protocol.types import conversation as wire
from antiphon.protocol.types.items import InputItem
from antiphon.protocol.types.lists import ConversationList, IncludeQuery, ItemList, ItemsQuery, ListQuery
from antiphon.service.conversations import ConversationKey, Conversations
from antiphon.transport.http.query import read_query
from antiphon.transport.http.request import Request, decode_body, read_json
from antiphon.transport.middleware.routing import READ_ERRORS, WRITE_ERRORS, Route

_CONVERSATION = "/v1/conversations/{conversation_id}"
_ITEMS = f"{_CONVERSATION}/items"
_ITEM = f"{_ITEMS}/{{item_id}}"


class ConversationsEndpoint(Struct, frozen=True):
    service: Conversations
    limits: Limits

    @Route("POST", "/v1/conversations", takes=wire.CreateConversation, takes_nothing=True, errors=(400, 413, 415, 503))
    async def create(self, request: Request) -> wire.Conversation:
        """Create a conversation. With up to 20 initial items."""
        body = await request.read_body(self.limits) if request.has_body() else b"{}"
        parsed, request.ignored = await decode_body(body, decode_conversation, self.limits)
        del body  # it may be large, and storing it takes time
        return await self.service.create(request.tenant, parsed)

    @Route("GET", "/v1/conversations", query=ListQuery, errors=READ_ERRORS)
    async def list_all(self, request: Request) -> ConversationList:
        """List conversations. Newest first, unless `order` says otherwise; `last_id` of a page is `after` of the next.
        An extension.
        """
        return await self.service.list_conversations(request.tenant, read_query(request, ListQuery))

    @Route("GET", _CONVERSATION, errors=READ_ERRORS)
    async def get(self, request: Request) -> wire.Conversation:
        """Retrieve a conversation."""
        return await self.service.get(self._locate(request))

    @Route("POST", _CONVERSATION, takes=wire.UpdateConversation, errors=WRITE_ERRORS)
    async def update(self, request: Request) -> wire.Conversation:
        """Update a conversation. The metadata is merged into the existing metadata; a null deletes its key."""
        at = self._locate(request)
        parsed, request.ignored = await read_json(request, decode_conversation_update, self.limits)
        return await self.service.update(at, parsed.metadata or {})

    @Route("DELETE", _CONVERSATION, errors=READ_ERRORS)
    async def delete(self, request: Request) -> wire.ConversationDeleted:
        """Delete a conversation. Its items are not deleted: other conversations may refer to them."""
        at = self._locate(request)
        await self.service.delete(at)
        return wire.ConversationDeleted(id=at.id)

    @Route("POST", _ITEMS, takes=wire.CreateItems, query=IncludeQuery, gives=ItemList, errors=WRITE_ERRORS)
    async def add_items(self, request: Request) -> None:
        """Add items to a conversation. At most 20 at a time. An item_reference adds the referenced item itself, with
        its id.
        """
        at = self._locate(request)
        include = read_query(request, IncludeQuery).include
        parsed, ignored = await read_json(request, decode_items, self.limits)
        request.ignored = [*request.ignored, *ignored]
        await request.reply(200, await self.service.add_items(at, parsed.items, include))

    @Route("GET", _ITEMS, query=ItemsQuery, gives=ItemList, errors=READ_ERRORS)
    async def list_items(self, request: Request) -> None:
        """List a conversation's items. Newest first, unless `order` says otherwise; `last_id` of a page is `after` of
        the next.
        """
        at = self._locate(request)
        await request.reply(200, await self.service.list_items(at, read_query(request, ItemsQuery)))

    @Route("GET", _ITEM, query=IncludeQuery, gives=InputItem, errors=READ_ERRORS)
    async def get_item(self, request: Request) -> None:
        """Retrieve an item."""
        at = self._locate(request)
        include = read_query(request, IncludeQuery).include
        await request.reply(200, await self.service.get_item(at, request.params["item_id"], include))

    @Route("DELETE", _ITEM, errors=READ_ERRORS)
    async def delete_item(self, request: Request) -> wire.Conversation:
        """Remove an item from a conversation. Returns the conversation. The item stays in other conversations."""
        return await self.service.delete_item(self._locate(request), request.params["item_id"])

    def _locate(self, request: Request) -> ConversationKey:
        return self.service.resolve_key(request.tenant, request.params["conversation_id"])
