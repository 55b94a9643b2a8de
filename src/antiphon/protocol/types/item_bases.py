"""The base class of items, and the types of fields that items of several kinds have."""

from typing import Literal

from msgspec import UNSET, Struct, UnsetType

Status = Literal["in_progress", "completed", "incomplete"]


class Item(Struct, kw_only=True, tag_field="type"):
    """One entry of a conversation.

    The server assigns the ids of stored items. An id that a client sends only serves for references within its request.
    """

    id: str | UnsetType = UNSET


class DirectCaller(Struct, kw_only=True, tag_field="type", tag="direct"):
    pass


class ProgramCaller(Struct, kw_only=True, tag_field="type", tag="program"):
    caller_id: str


Caller = DirectCaller | ProgramCaller
