"""Bodies that create and change conversations, and the replies."""

from typing import Literal

from msgspec import Struct, field

from antiphon.protocol.types.items import InputItem


class Conversation(Struct, kw_only=True):
    id: str
    object: Literal["conversation"] = "conversation"
    created_at: int
    metadata: dict[str, str] = {}


class ConversationDeleted(Struct, kw_only=True):
    id: str
    object: Literal["conversation.deleted"] = "conversation.deleted"
    deleted: bool = True


class CreateConversation(Struct, kw_only=True):
    items: list[InputItem] = field(default_factory=list)
    metadata: dict[str, str] = field(default_factory=dict)


class UpdateConversation(Struct, kw_only=True):
    """New metadata, merged into the stored metadata.

    A value of null deletes its key; null instead of the object changes nothing.
    """

    metadata: dict[str, str | None] | None


class CreateItems(Struct, kw_only=True):
    items: list[InputItem]
