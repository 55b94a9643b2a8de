"""What a compaction item stands for, and how a history that has one is told to a model.

    earlier ── input ── compaction ── what came after             as it is kept, and as a client brings it back
                            │
    instructions ── the user's messages ── summary ── tail ── what came after      as the model is told

A compaction stands for everything before it: in a response's output for that response's input too. Of what is before
it only what says how to go on is still told: system and developer messages, tools. The user's messages are sealed in it
whole or by their first characters, the rest as the model's own summary. What nobody had answered when it was made, the
tail, is sealed as it was: the last question, or calls with their outputs. So the model goes on from there, whether the
items before the compaction come back or not, and nothing is told twice. Only the last of several counts.
"""

import zlib
from collections.abc import Sequence
from typing import Final

import msgspec
from msgspec import Struct

from antiphon.protocol.types.items import (
    AdditionalTools,
    Compaction,
    CompactionTrigger,
    ConfigurationUpdate,
    InputItem,
    InputText,
    McpListTools,
    Message,
    MessagePart,
    OutputText,
)

FIRST: Final = 200  # characters of a user's message that are kept in any case
_HEAD: Final = "[Summary of the conversation so far]"
_HEAD_CUT: Final = f"[Summary of the conversation so far; of long messages only the first {FIRST} characters are above]"
_MOST: Final = 256 * 1024 * 1024  # bytes that a memory may come to


class Memory(Struct, frozen=True, kw_only=True):
    """What is sealed in a compaction. Whatever is added later has a default."""

    users: list[str]  # oldest first
    cut: bool = False  # not all of them are whole
    summary: str  # "" if there was nothing to be summed up
    tail: list[InputItem] = []


class OpenCompaction(Compaction, tag="compaction", kw_only=True):
    """One whose memory is at hand. It is made for a prompt, and never kept or sent."""

    memory: Memory


class Remembered(Message, tag="message", kw_only=True):
    """All that the user said, in one message: many templates take no two in a row. Never kept or sent either."""

    users: list[str]


_MARKS = frozenset({OpenCompaction, CompactionTrigger})
_memories = msgspec.json.Decoder(Memory)


def pack(memory: Memory) -> bytes:
    return zlib.compress(msgspec.json.encode(memory))


def unpack(packed: bytes) -> Memory:
    """Of what `pack` gave: nobody else's bytes come here."""
    return _memories.decode(zlib.decompressobj().decompress(packed, _MOST))


def governs(item: InputItem) -> bool:
    """It says how to go on, so it is told as long as it is there."""
    if isinstance(item, Message):
        return item.role in ("system", "developer")
    return isinstance(item, AdditionalTools | McpListTools | ConfigurationUpdate)


def told(memory: Memory) -> list[InputItem]:
    """What a model is told in place of all that was. The summary is its own word, not the user's."""
    items: list[InputItem] = []
    if memory.users:
        parts: list[MessagePart] = [InputText(text="\n\n".join(memory.users))]
        items.append(Remembered(role="user", content=parts, users=memory.users))
    if memory.summary:
        text = f"{_HEAD_CUT if memory.cut else _HEAD}\n{memory.summary}"
        items.append(Message(role="assistant", content=[OutputText(text=text)]))
    return [*items, *memory.tail]


def user_message(text: str) -> Message:
    return Message(role="user", content=[InputText(text=text)])


def is_summary(item: InputItem) -> bool:
    """It looks like what an earlier compaction told."""
    if not isinstance(item, Message) or item.role != "assistant" or not item.content:
        return False
    first = item.content[0]
    return isinstance(first, OutputText) and first.text.startswith(_HEAD[:-1])


def last_compaction(items: Sequence[InputItem]) -> int | None:
    if Compaction not in map(type, items):  # as almost always
        return None
    return max([at for at, item in enumerate(items) if type(item) is Compaction])


def restored(items: tuple[InputItem, ...], places: Sequence[int]) -> tuple[tuple[InputItem, ...], Sequence[int]]:
    """The items as a model is told them; each of those that are restored is in its compaction's place.

    A trigger has had its effect by now, and says nothing.
    """
    if _MARKS.isdisjoint(map(type, items)):
        return items, places
    at = next((n for n in range(len(items) - 1, -1, -1) if type(items[n]) is OpenCompaction), -1)
    kept = [(item, place) for item, place in zip(items[: at + 1], places[: at + 1], strict=True) if governs(item)]
    if isinstance(compaction := items[at] if at >= 0 else None, OpenCompaction):
        kept += [(item, places[at]) for item in told(compaction.memory)]
    after = zip(items[at + 1 :], places[at + 1 :], strict=True)
    kept += [(item, place) for item, place in after if type(item) is not CompactionTrigger]
    return tuple([item for item, _ in kept]), tuple([place for _, place in kept])
