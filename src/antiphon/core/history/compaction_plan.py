"""What becomes of a history that is compacted: what stays as it is, what the user said, and what is summed up.

stays   system and developer messages, tools: not a compaction's business
tail    what nobody has answered yet, as it is: calls without an output; and, if an answer is to come, the last
        question, or the last calls with their outputs
users   what the user said, but for the tail: newest whole as long as there is room, else by its first characters
summed  everything but the tail, for the model to sum up
"""

from collections.abc import Sequence

from msgspec import UNSET, Struct
from msgspec.structs import replace

from antiphon.core.history.compaction import FIRST, Memory, Remembered, governs, is_summary
from antiphon.core.history.history import History, answers, is_call, is_output, units
from antiphon.protocol.types.items import (
    AdditionalTools,
    InputFile,
    InputImage,
    InputItem,
    InputText,
    LocalShellCall,
    McpApprovalRequest,
    McpApprovalResponse,
    McpListTools,
    Message,
    OutputText,
    PlainText,
    Reasoning,
)


class Parting(Struct, frozen=True, kw_only=True):
    stays: list[InputItem]
    summed: list[InputItem]  # with what stays
    tail: list[InputItem]
    users: list[str]

    @property
    def is_idle(self) -> bool:
        """There is nothing to be summed up."""
        return len(self.summed) == len(self.stays)


def part(items: Sequence[InputItem], answering: bool) -> Parting:
    """`answering`: the model is to go on from here. The items are those of one history, restored."""
    plain = [_unsealed(item) for item in items if not isinstance(item, AdditionalTools | McpListTools)]
    tail = _tail(plain, answering)
    rest = [item for index, item in enumerate(plain) if index not in tail]
    return Parting(
        stays=[item for item in rest if governs(item)],
        summed=rest,
        tail=[item for index, item in enumerate(plain) if index in tail],
        users=[text for item in rest if isinstance(item, Message) and item.role == "user" for text in _texts(item)],
    )


def filled(parting: Parting, summary: str, room: int) -> Memory:
    """`room`: characters of the user's messages beyond their first ones; the newest have them."""
    users: list[str] = []
    for text in reversed(parting.users):
        rest = max(0, len(text) - FIRST)
        whole = rest <= room
        room -= rest if whole else 0
        users.append(text if whole else text[:FIRST])
    users.reverse()
    return Memory(users=users, cut=users != parting.users, summary=summary, tail=parting.tail)


def excess(parting: Parting) -> int:
    """The room in which all of the user's messages are whole."""
    return sum([max(0, len(text) - FIRST) for text in parting.users])


def newest(items: Sequence[InputItem], share: float) -> list[InputItem]:
    """About this share of them: the oldest units are left out, but not what governs, nor an earlier summary."""
    found = units(History(tuple(items), range(len(items))))
    gone = {index for unit in found[: int(len(found) * (1 - share))] for index in unit}
    return [item for index, item in enumerate(items) if index not in gone or governs(item) or is_summary(item)]


def _texts(message: Message) -> list[str]:
    return message.users if isinstance(message, Remembered) else [text_of(message)]


def text_of(message: Message) -> str:
    """All that can be said of it in words."""
    return "\n".join([said for part in message.content if (said := _said(part))])


def _said(part: object) -> str:
    match part:
        case InputText(text=text) | OutputText(text=text) | PlainText(text=text):
            return text
        case InputImage():
            return "[image]"
        case InputFile():
            return "[file]" if part.filename is UNSET else f"[file {part.filename}]"
        case _:
            return "[attachment]"


def _unsealed(item: InputItem) -> InputItem:
    """It is going to be sealed with all the rest."""
    if isinstance(item, Reasoning) and item.encrypted_content is not UNSET:
        return replace(item, encrypted_content=UNSET)
    return item


def _tail(items: Sequence[InputItem], answering: bool) -> set[int]:
    found = units(History(tuple(items), range(len(items))))
    open_ = _unanswered(items)
    tail = {index for unit in found if not open_.isdisjoint(unit) for index in unit}
    if answering:
        tail |= _last(items, found)
    return {index for index in tail if not governs(items[index])}


def _last(items: Sequence[InputItem], found: Sequence[Sequence[int]]) -> set[int]:
    """What the model has not said a word to: the user's last messages, or the last calls."""
    last: set[int] = set()
    for unit in reversed(found):
        if all(governs(items[index]) for index in unit):
            continue
        said = all(_is_user(items[index]) for index in unit)
        if said or (not last and any(_answers(items[index]) for index in unit)):
            last |= set(unit)
        if not said:
            break
    return last


def _is_user(item: InputItem) -> bool:
    return isinstance(item, Message) and item.role == "user"


def _answers(item: InputItem) -> bool:
    return is_output(item) or isinstance(item, McpApprovalResponse)


def _unanswered(items: Sequence[InputItem]) -> set[int]:
    """Calls and requests that something is still to come for: the user has not said anything else since."""
    answered = {answers(item) for item in items}
    answered |= {item.approval_request_id for item in items if isinstance(item, McpApprovalResponse)}
    found: set[int] = set()
    for index, item in enumerate(items):
        if _is_user(item):
            found.clear()
        names: set[object] = set()
        if isinstance(item, McpApprovalRequest):
            names = {item.id}
        elif is_call(item) and item.call_id is not None:
            names = {item.call_id, item.id} if isinstance(item, LocalShellCall) else {item.call_id}
        if names and answered.isdisjoint(names):
            found.add(index)
    return found
