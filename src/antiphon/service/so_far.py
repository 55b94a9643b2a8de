"""How far a running response is, by what its live log says: with all items that are done."""

import asyncio
from collections.abc import Sequence

from antiphon.core.replay.replay import Replay, decode_entries, reopened
from antiphon.protocol.decoding.codec import encode
from antiphon.service.record import response_of
from antiphon.stores.base import StoredResponse
from antiphon.stores.live.base import LiveLog

_AT_ONCE = 64 * 1024  # bytes of a log that are read where they are asked for; more goes to a thread


async def so_far(live: LiveLog, tenant: str, row: StoredResponse) -> bytes:
    """The JSON of it. One that only its own client can follow has no live log, and looks as it began."""
    batches = await live.read(tenant, row.id, -1)
    if sum(map(len, batches)) <= _AT_ONCE:
        return _told(row, batches)
    return await asyncio.to_thread(_told, row, batches)


def _told(row: StoredResponse, batches: Sequence[bytes]) -> bytes:
    replay = Replay(reopened(response_of(row.response)), obfuscates=False)
    replay.open()
    for batch in batches:
        replay.feed(decode_entries(batch))
    response = replay.emitter.response
    response.status = row.status
    return encode(response)
