"""Who listens to the words of a live log."""

import asyncio

_SECONDS = 60.0


class Ear:
    def __init__(self) -> None:
        self._words: asyncio.Queue[str] = asyncio.Queue()

    def __call__(self, response_id: str) -> None:
        self._words.put_nowait(response_id)

    async def hears(self, *response_ids: str, seconds: float = _SECONDS) -> None:
        """Until it has heard of each of them; others are passed over."""
        missing = set(response_ids)
        async with asyncio.timeout(seconds):
            while missing:
                missing.discard(await self._words.get())
