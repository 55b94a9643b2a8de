"""What sealed reasoning looks like: a client keeps it, cannot read it, and sends it back as it came.

    antiphon-sealed-1. ─ base64 of: the key's id ─ a nonce ─ the text, encrypted ─ its tag

Whatever begins like this claims to be ours. Anything else was made elsewhere, and nobody here can say what it says.
"""

from collections.abc import Callable, Sequence
from typing import Final

from msgspec import UNSET
from msgspec.structs import replace

from antiphon.protocol.types.items import InputItem, Reasoning, ReasoningText

Seal = Callable[[str], str]  # a thought → what a client may have of it
Open = Callable[[int, str], str]  # where an item stands, and what was sealed → the thought

OURS: Final = "antiphon-sealed-"
FORM: Final = f"{OURS}1."


def is_ours(sealed: str) -> bool:
    return sealed.startswith(OURS)


def sealed_size(items: Sequence[InputItem]) -> int:
    """Characters of all that is sealed, wherever that was done."""
    return sum([len(item.encrypted_content or "") for item in items if type(item) is Reasoning])


def opened(items: Sequence[InputItem], open_: Open) -> tuple[list[InputItem], bool]:
    """With what was sealed in their content: that, and not what a client says beside it, is what was thought.

    The rest stays as it is. Was there any that is not ours?
    """
    foreign = any(type(item) is Reasoning and _is_foreign(item) for item in items)
    found = [_opened(index, item, open_) if type(item) is Reasoning else item for index, item in enumerate(items)]
    return found, foreign


def shown(item: InputItem, seal: Seal | None) -> InputItem:
    return shown_reasoning(item, seal) if type(item) is Reasoning else item


def shown_reasoning(item: Reasoning, seal: Seal | None) -> Reasoning:
    """As a client sees it that asked for it sealed (`seal`), or did not. What came sealed stays as it came."""
    if seal is None:
        return replace(item, encrypted_content=UNSET) if item.encrypted_content else item
    thought = thought_of(item)
    return replace(item, encrypted_content=seal(thought)) if thought and not item.encrypted_content else item


def thought_of(item: Reasoning) -> str:
    """The reasoning itself, or else what is told of it."""
    raw = "".join([part.text for part in item.content or ()])
    return raw or "\n\n".join([part.text for part in item.summary])


def _is_foreign(item: Reasoning) -> bool:
    return bool(item.encrypted_content) and not is_ours(str(item.encrypted_content))


def _opened(index: int, item: Reasoning, open_: Open) -> Reasoning:
    sealed = item.encrypted_content
    if not sealed or not is_ours(sealed):
        return item
    return replace(item, content=[ReasoningText(text=open_(index, sealed))])
