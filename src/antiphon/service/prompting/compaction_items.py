"""Compactions, sealed and opened again: what a client brings back, and what is kept of earlier responses.

What is kept stays sealed; only what goes to a model is opened. One that cannot be opened is refused: it stands for all
that was, and nobody can say what that is.
"""

import asyncio
from collections.abc import Sequence

from antiphon.core.history.compaction import Memory, OpenCompaction, last_compaction, pack, unpack
from antiphon.protocol.types.items import Compaction, InputItem
from antiphon.service.encryption.keyring import COMPACTION, Keyring, Unsealable, unverified

_AT_ONCE = 64 * 1024  # characters that are opened where they are met; more goes to a thread


async def sealed(keyring: Keyring, tenant: str, memory: Memory) -> Compaction:
    """In a thread: there may be pictures in it."""
    return await asyncio.to_thread(_sealed, keyring, tenant, memory)


async def verified(keyring: Keyring, tenant: str, items: Sequence[InputItem], field: str = "input") -> None:
    """Raises InvalidEncryptedContent, with the item as `param`, if one of them is not ours or not this tenant's."""
    for index, item in enumerate(items):
        if isinstance(item, Compaction):
            await _opened(keyring, tenant, item, f"{field}[{index}].encrypted_content")


async def reopened(
    keyring: Keyring, tenant: str, earlier: Sequence[InputItem], given: Sequence[InputItem], before: str
) -> tuple[Sequence[InputItem], Sequence[InputItem]]:
    """The same, with the last compaction open: core/history/history.py puts in its place what it stands for.

    `before`: the field of the request that the earlier items came by.
    """
    if (at := last_compaction(given)) is not None:
        await verified(keyring, tenant, given[:at])
        return earlier, await _with_open(keyring, tenant, given, at, f"input[{at}].encrypted_content")
    if (at := last_compaction(earlier)) is not None:
        return await _with_open(keyring, tenant, earlier, at, before), given
    return earlier, given


async def _with_open(
    keyring: Keyring, tenant: str, items: Sequence[InputItem], at: int, param: str
) -> Sequence[InputItem]:
    item = items[at]
    assert isinstance(item, Compaction)
    memory = await _opened(keyring, tenant, item, param)
    opened = OpenCompaction(id=item.id, encrypted_content=item.encrypted_content, memory=memory)
    return [*items[:at], opened, *items[at + 1 :]]


async def _opened(keyring: Keyring, tenant: str, item: Compaction, param: str) -> Memory:
    try:
        if len(item.encrypted_content) <= _AT_ONCE:
            return _memory(keyring, tenant, item)
        return await asyncio.to_thread(_memory, keyring, tenant, item)
    except Unsealable as error:
        raise unverified(error, param) from None


def _sealed(keyring: Keyring, tenant: str, memory: Memory) -> Compaction:
    return Compaction(encrypted_content=keyring.seal_bytes(tenant, pack(memory), COMPACTION))


def _memory(keyring: Keyring, tenant: str, item: Compaction) -> Memory:
    return unpack(keyring.open_bytes(tenant, item.encrypted_content, COMPACTION))
