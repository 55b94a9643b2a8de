"""Format of encrypted reasoning. The client stores it, cannot read it, and sends it back unchanged.

    antiphon-sealed-1. ─ base64 of: key id ─ nonce ─ encrypted text ─ authentication tag

Content with this prefix claims to come from this server. Any other content comes from another server and cannot be
decrypted here.
"""

from collections.abc import Callable, Sequence
from typing import Final

from msgspec import UNSET
from msgspec.structs import replace

from antiphon.protocol.types.items import InputItem, Reasoning
from antiphon.protocol.types.parts import ReasoningText

Encrypt = Callable[[str], str]  # reasoning → the ciphertext that the client receives
Decrypt = Callable[[int, str], str]  # (index of the item, ciphertext) → reasoning

PREFIX: Final = "antiphon-sealed-"
VERSION_PREFIX: Final = f"{PREFIX}1."


def is_own_ciphertext(encrypted: str) -> bool:
    return encrypted.startswith(PREFIX)


def encrypted_size(items: Sequence[InputItem]) -> int:
    """Return the total length of encrypted reasoning in characters, whichever server produced it."""
    return sum([len(item.encrypted_content or "") for item in items if type(item) is Reasoning])


def decrypt_items(items: Sequence[InputItem], decrypt: Decrypt) -> tuple[list[InputItem], bool]:
    """Replace the content of reasoning items by their decrypted ciphertext and leave other items unchanged.

    The ciphertext, not the plain text that a client sends beside it, is authoritative. The second value is True if any
    item has ciphertext of another server.
    """
    encrypted = [item.encrypted_content for item in items if type(item) is Reasoning and item.encrypted_content]
    foreign = not all(map(is_own_ciphertext, encrypted))
    found = [
        _decrypt_item(index, item, decrypt) if type(item) is Reasoning else item for index, item in enumerate(items)
    ]
    return found, foreign


def apply_encryption(item: InputItem, encrypt: Encrypt | None) -> InputItem:
    """Add encrypted content to reasoning if the client requested it (`encrypt` is set), otherwise remove it.

    Content that arrived encrypted is not encrypted again.
    """
    if type(item) is not Reasoning:
        return item
    if encrypt is None:
        return replace(item, encrypted_content=UNSET) if item.encrypted_content else item
    text = reasoning_text(item)
    return replace(item, encrypted_content=encrypt(text)) if text and not item.encrypted_content else item


def reasoning_text(item: Reasoning) -> str:
    """Return the raw reasoning, or the summary if there is none."""
    raw = "".join([part.text for part in item.content or ()])
    return raw or "\n\n".join([part.text for part in item.summary])


def _decrypt_item(index: int, item: Reasoning, decrypt: Decrypt) -> Reasoning:
    encrypted = item.encrypted_content
    if not encrypted or not is_own_ciphertext(encrypted):
        return item
    return replace(item, content=[ReasoningText(text=decrypt(index, encrypted))])
