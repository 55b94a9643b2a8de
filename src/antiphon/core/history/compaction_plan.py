"""Plans a compaction: splits a history into directives, a tail, user messages and items to summarise.

directives    system and developer messages; a compaction does not change them, nor tools, which are not in the plan
tail          unanswered items, unchanged: calls without an output; and, if an answer is to follow, the last question,
              or the last calls with their outputs
users         texts of the user outside the tail: newest first in full while there is room, otherwise by their first
              characters
to_summarise  everything but the tail, for the model to summarise
"""

from collections.abc import Sequence

from msgspec import UNSET, Struct
from msgspec.structs import replace

from antiphon.core.history import history
from antiphon.core.history.compaction import (
    USER_PREFIX_CHARS,
    CompactionMemory,
    JoinedUserMessages,
    is_directive,
    is_summary,
)
from antiphon.protocol.types import items as it
from antiphon.protocol.types.items import InputItem, Message
from antiphon.protocol.types.parts import InputFile, InputImage, InputText, OutputText, PlainText


class CompactionPlan(Struct, frozen=True, kw_only=True):
    """The parts of a history that is compacted."""

    directives: list[InputItem]
    to_summarise: list[InputItem]  # includes the directives
    tail: list[InputItem]
    users: list[str]

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to summarise."""
        return len(self.to_summarise) == len(self.directives)


def plan_compaction(items: Sequence[InputItem], answering: bool) -> CompactionPlan:
    """Split the restored items of one history. `answering`: the model is to continue from here."""
    plain = [_strip_encrypted(item) for item in items if not isinstance(item, it.AdditionalTools | it.McpListTools)]
    tail = _find_tail(plain, answering)
    others = [item for index, item in enumerate(plain) if index not in tail]
    return CompactionPlan(
        directives=[item for item in others if is_directive(item)],
        to_summarise=others,
        tail=[item for index, item in enumerate(plain) if index in tail],
        users=[
            text for item in others if isinstance(item, Message) and item.role == "user" for text in _user_texts(item)
        ],
    )


def build_memory(plan: CompactionPlan, summary: str, budget: int) -> CompactionMemory:
    """Build the memory. `budget` is the number of characters of user messages beyond their prefixes, newest first."""
    users: list[str] = []
    for text in reversed(plan.users):
        extra = max(0, len(text) - USER_PREFIX_CHARS)
        fits = extra <= budget
        budget -= extra if fits else 0
        users.append(text if fits else text[:USER_PREFIX_CHARS])
    users.reverse()
    return CompactionMemory(users=users, cut=users != plan.users, summary=summary, tail=plan.tail)


def excess_chars(plan: CompactionPlan) -> int:
    """Return the budget in which all user messages are complete."""
    return sum([max(0, len(text) - USER_PREFIX_CHARS) for text in plan.users])


def select_newest(items: Sequence[InputItem], share: float) -> list[InputItem]:
    """Return about this share of the items: the oldest units are dropped, except directives and an earlier summary."""
    found = history.group_units(history.History(tuple(items), range(len(items))))
    dropped = {index for unit in found[: int(len(found) * (1 - share))] for index in unit}
    return [item for index, item in enumerate(items) if index not in dropped or is_directive(item) or is_summary(item)]


def _user_texts(message: Message) -> list[str]:
    return message.users if isinstance(message, JoinedUserMessages) else [message_text(message)]


def message_text(message: Message) -> str:
    """Return the text of a message, with placeholders for other content."""
    return "\n".join([text for part in message.content if (text := _part_text(part))])


def _part_text(part: object) -> str:
    match part:
        case InputText(text=text) | OutputText(text=text) | PlainText(text=text):
            return text
        case InputImage():
            return "[image]"
        case InputFile():
            return "[file]" if part.filename is UNSET else f"[file {part.filename}]"
        case _:
            return "[attachment]"


def _strip_encrypted(item: InputItem) -> InputItem:
    """Remove the encrypted content: the item is encrypted as part of the memory."""
    if isinstance(item, it.Reasoning) and item.encrypted_content is not UNSET:
        return replace(item, encrypted_content=UNSET)
    return item


def _find_tail(items: Sequence[InputItem], answering: bool) -> set[int]:
    found = history.group_units(history.History(tuple(items), range(len(items))))
    pending = _find_pending_calls(items)
    tail = {index for unit in found if not pending.isdisjoint(unit) for index in unit}
    if answering:
        tail |= _find_unanswered_end(items, found)
    return {index for index in tail if not is_directive(items[index])}


def _find_unanswered_end(items: Sequence[InputItem], found: Sequence[Sequence[int]]) -> set[int]:
    """Find what the model has not answered yet: the last user messages, or the last calls."""
    last: set[int] = set()
    for unit in reversed(found):
        if all(is_directive(items[index]) for index in unit):
            continue
        from_user = all(history.is_user_message(items[index]) for index in unit)
        if from_user or (not last and any(_is_answer(items[index]) for index in unit)):
            last |= set(unit)
        if not from_user:
            break
    return last


def _is_answer(item: InputItem) -> bool:
    return history.is_output(item) or isinstance(item, it.McpApprovalResponse)


def _find_pending_calls(items: Sequence[InputItem]) -> set[int]:
    """Find calls and approval requests that still await an answer: no user message came after them."""
    answered = {history.referenced_id(item) for item in items}
    found: set[int] = set()
    for index, item in enumerate(items):
        if history.is_user_message(item):
            found.clear()
        if (ids := history.reference_ids(item)) and answered.isdisjoint(ids):
            found.add(index)
    return found
