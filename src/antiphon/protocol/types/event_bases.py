"""Base classes of events; types/events.py defines the events."""

from msgspec import Struct


class Event(Struct, kw_only=True, tag_field="type"):
    """One event of a stream."""

    sequence_number: int = -1

    @property
    def type(self) -> str:
        return str(self.__struct_config__.tag)


class ItemEvent(Event, kw_only=True, gc=False):
    item_id: str
    output_index: int


class PartEvent(ItemEvent, kw_only=True, gc=False):
    content_index: int


class SummaryEvent(ItemEvent, kw_only=True, gc=False):
    summary_index: int
