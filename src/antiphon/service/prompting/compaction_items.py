"""Encryption and decryption of compaction items, as sent back by clients or stored with earlier responses.

Stored compactions stay encrypted; they are decrypted only for a prompt. A compaction that cannot be decrypted is
rejected, because it replaces the complete history before it.
"""

import asyncio
from collections.abc import Sequence

from antiphon.core.history.compaction import CompactionMemory, DecryptedCompaction, find_last_compaction, pack, unpack
from antiphon.protocol.types.items import Compaction, InputItem
from antiphon.service.encryption.keyring import COMPACTION, DecryptionError, Keyring, unverified_error

_MAX_INLINE_CHARS = 64 * 1024  # longer content is decrypted in a thread


async def encrypt_memory(keyring: Keyring, tenant: str, memory: CompactionMemory) -> Compaction:
    """Encrypt in a thread: the memory may contain images."""
    return await asyncio.to_thread(_encrypt, keyring, tenant, memory)


async def verify_compactions(keyring: Keyring, tenant: str, items: Sequence[InputItem], field: str = "input") -> None:
    """Raise InvalidEncryptedContent, with the item as `param`, if a compaction is not from this server or another
    tenant's.
    """
    for index, item in enumerate(items):
        if isinstance(item, Compaction):
            await _decrypt(keyring, tenant, item, f"{field}[{index}].encrypted_content")


async def open_last_compaction(
    keyring: Keyring, tenant: str, earlier: Sequence[InputItem], input_items: Sequence[InputItem], earlier_param: str
) -> tuple[Sequence[InputItem], Sequence[InputItem]]:
    """Return both lists with the last compaction decrypted; core/history/history.py replaces it by its memory.

    `earlier_param`: the request field that refers to the earlier items.
    """
    if (at := find_last_compaction(input_items)) is not None:
        await verify_compactions(keyring, tenant, input_items[:at])
        return earlier, await _open_at(keyring, tenant, input_items, at, f"input[{at}].encrypted_content")
    if (at := find_last_compaction(earlier)) is not None:
        return await _open_at(keyring, tenant, earlier, at, earlier_param), input_items
    return earlier, input_items


async def _open_at(
    keyring: Keyring, tenant: str, items: Sequence[InputItem], at: int, param: str
) -> Sequence[InputItem]:
    item = items[at]
    assert isinstance(item, Compaction)
    memory = await _decrypt(keyring, tenant, item, param)
    open_item = DecryptedCompaction(id=item.id, encrypted_content=item.encrypted_content, memory=memory)
    return [*items[:at], open_item, *items[at + 1 :]]


async def _decrypt(keyring: Keyring, tenant: str, item: Compaction, param: str) -> CompactionMemory:
    try:
        if len(item.encrypted_content) <= _MAX_INLINE_CHARS:
            return _decrypt_memory(keyring, tenant, item)
        return await asyncio.to_thread(_decrypt_memory, keyring, tenant, item)
    except DecryptionError as error:
        raise unverified_error(error, param) from None


def _encrypt(keyring: Keyring, tenant: str, memory: CompactionMemory) -> Compaction:
    return Compaction(encrypted_content=keyring.encrypt_bytes(tenant, pack(memory), COMPACTION))


def _decrypt_memory(keyring: Keyring, tenant: str, item: Compaction) -> CompactionMemory:
    return unpack(keyring.decrypt_bytes(tenant, item.encrypted_content, COMPACTION))
