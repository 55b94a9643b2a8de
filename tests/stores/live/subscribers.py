"""A subscriber to the notifications of a live log."""

import asyncio

_TIMEOUT_SECONDS = 60.0


class NotificationQueue:
    def __init__(self) -> None:
        self._received: asyncio.Queue[str] = asyncio.Queue()

    def __call__(self, response_id: str) -> None:
        self._received.put_nowait(response_id)

    async def wait_for(self, *response_ids: str, seconds: float = _TIMEOUT_SECONDS) -> None:
        """Wait until each of these responses has been notified; others are ignored."""
        missing = set(response_ids)
        async with asyncio.timeout(seconds):
            while missing:
                missing.discard(await self._received.get())
