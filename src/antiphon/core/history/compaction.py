"""Compaction items, and how a history that contains one is presented to the model.

    earlier ── input ── compaction ── later items                 as stored, and as a client sends it back
                            │
    instructions ── user messages ── summary ── tail ── later items                as sent to the model

A compaction replaces everything before it; in a response's output it also replaces that response's input. Of the items
before it only directives are still sent: system and developer messages, and tools. User messages are stored encrypted
in the compaction, complete or by their first characters; the other items as a summary by the model. The tail holds the
items that were unanswered at that time, unchanged: the last question, or calls with their outputs. The model therefore
continues from there, whether or not the client sends the items before the compaction again, and nothing is sent twice.
Only the last of several compactions counts.
"""

import zlib
from collections.abc import Sequence
from typing import Final

import msgspec
from msgspec import Struct

from antiphon.protocol.types import items as it
from antiphon.protocol.types.items import Compaction, InputItem, Message
from antiphon.protocol.types.parts import InputText, MessagePart, OutputText

USER_PREFIX_CHARS: Final = 200  # characters of a user message that are always stored
_HEAD: Final = "[Summary of the conversation so far]"
_HEAD_CUT: Final = (
    f"[Summary of the conversation so far; of long messages only the first {USER_PREFIX_CHARS} characters are above]"
)
_MAX_MEMORY_BYTES: Final = 256 * 1024 * 1024  # limit of a decompressed memory


class CompactionMemory(Struct, frozen=True, kw_only=True):
    """Encrypted content of a compaction. New fields need a default."""

    users: list[str]  # user messages, oldest first
    cut: bool = False  # some user messages are truncated
    summary: str  # "" if there was nothing to summarise
    tail: list[InputItem] = []


class DecryptedCompaction(Compaction, tag="compaction", kw_only=True):
    """A compaction with its decrypted memory. Created for a prompt; never stored or sent."""

    memory: CompactionMemory


class JoinedUserMessages(Message, tag="message", kw_only=True):
    """All user messages in one message: many chat templates reject consecutive ones. Never stored or sent."""

    users: list[str]


_HANDLED_TYPES = frozenset({DecryptedCompaction, it.CompactionTrigger})
_decoder = msgspec.json.Decoder(CompactionMemory)


def pack(memory: CompactionMemory) -> bytes:
    return zlib.compress(msgspec.json.encode(memory))


def unpack(packed: bytes) -> CompactionMemory:
    """Decode the result of `pack`. Only authenticated bytes may be passed."""
    return _decoder.decode(zlib.decompressobj().decompress(packed, _MAX_MEMORY_BYTES))


def is_directive(item: InputItem) -> bool:
    """Check whether the item is a directive, which is sent to the model even if a compaction follows it."""
    if isinstance(item, Message):
        return item.role in ("system", "developer")
    return isinstance(item, it.AdditionalTools | it.McpListTools | it.ConfigurationUpdate)


def expand_memory(memory: CompactionMemory) -> list[InputItem]:
    """Return the items that replace a compacted history. The summary has the role of the assistant, not of the user."""
    items: list[InputItem] = []
    if memory.users:
        parts: list[MessagePart] = [InputText(text="\n\n".join(memory.users))]
        items.append(JoinedUserMessages(role="user", content=parts, users=memory.users))
    if memory.summary:
        text = f"{_HEAD_CUT if memory.cut else _HEAD}\n{memory.summary}"
        items.append(Message(role="assistant", content=[OutputText(text=text)]))
    return [*items, *memory.tail]


def user_message(text: str) -> Message:
    return Message(role="user", content=[InputText(text=text)])


def is_summary(item: InputItem) -> bool:
    """Check whether the item looks like the summary of an earlier compaction."""
    if not isinstance(item, Message) or item.role != "assistant" or not item.content:
        return False
    first = item.content[0]
    return isinstance(first, OutputText) and first.text.startswith(_HEAD[:-1])


def find_last_compaction(items: Sequence[InputItem]) -> int | None:
    if Compaction not in map(type, items):  # the usual case
        return None
    return max([at for at, item in enumerate(items) if type(item) is Compaction])


def restore_compaction(
    items: tuple[InputItem, ...], positions: Sequence[int]
) -> tuple[tuple[InputItem, ...], Sequence[int]]:
    """Return the items as the model reads them; restored items have the position of their compaction.

    Compaction triggers have taken effect already and are dropped.
    """
    if _HANDLED_TYPES.isdisjoint(map(type, items)):
        return items, positions
    at = next((n for n in range(len(items) - 1, -1, -1) if type(items[n]) is DecryptedCompaction), -1)
    out = [
        (item, position)
        for item, position in zip(items[: at + 1], positions[: at + 1], strict=True)
        if is_directive(item)
    ]
    if isinstance(compaction := items[at] if at >= 0 else None, DecryptedCompaction):
        out += [(item, positions[at]) for item in expand_memory(compaction.memory)]
    after = zip(items[at + 1 :], positions[at + 1 :], strict=True)
    out += [(item, position) for item, position in after if type(item) is not it.CompactionTrigger]
    return tuple([item for item, _ in out]), tuple([position for _, position in out])
