"""A connection for words is kept up, and the log says so in two lines, however long it was away."""

import asyncio
import logging

import pytest

from antiphon.stores.live import reconnect
from antiphon.stores.live.reconnect import again_and_again

pytestmark = pytest.mark.anyio


class Lines(logging.Handler):
    """What the log is told."""

    def __init__(self) -> None:
        super().__init__()
        self.said: list[str] = []
        self.news = asyncio.Event()

    def emit(self, record: logging.LogRecord) -> None:
        self.said.append(record.getMessage())
        if "again" in record.getMessage():
            self.news.set()


async def test_the_log_is_told_once_that_words_are_lost_and_once_that_they_are_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reconnect, "FIRST_PAUSE", 0.001)
    monkeypatch.setattr(reconnect, "HEALTHY_SECONDS", 0.1)
    lines, tries = Lines(), 0

    async def session() -> None:
        nonlocal tries
        tries += 1
        if tries <= 6:
            raise ConnectionError("nobody there")
        await asyncio.Event().wait()

    reconnect.log.addHandler(lines)
    try:
        async with asyncio.timeout(60), asyncio.TaskGroup() as group:
            task = group.create_task(again_and_again(session, (ConnectionError,)))
            await lines.news.wait()
            task.cancel()
    finally:
        reconnect.log.removeHandler(lines)
    assert tries == 7
    assert lines.said == [
        "The live log's words are lost, until it answers: ConnectionError: nobody there",
        "The live log's words are heard again.",
    ]
