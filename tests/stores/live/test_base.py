"""The notification connection is restored after each loss, and an outage is logged in two lines, however long it
lasts.
"""

import asyncio
import logging

import pytest

from antiphon.stores.live import base
from antiphon.stores.live.base import run_with_reconnect

pytestmark = pytest.mark.anyio


class LogCapture(logging.Handler):
    """Collects the log messages and signals the end of the outage."""

    def __init__(self) -> None:
        super().__init__()
        self.messages: list[str] = []
        self.recovered = asyncio.Event()

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())
        if "again" in record.getMessage():
            self.recovered.set()


async def test_an_outage_of_notifications_is_logged_once_and_its_end_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(base, "FIRST_PAUSE", 0.001)
    monkeypatch.setattr(base, "HEALTHY_SECONDS", 0.1)
    capture, tries = LogCapture(), 0

    async def session() -> None:
        nonlocal tries
        tries += 1
        if tries <= 6:
            raise ConnectionError("connection refused")
        await asyncio.Event().wait()

    base.log.addHandler(capture)
    try:
        async with asyncio.timeout(60), asyncio.TaskGroup() as group:
            task = group.create_task(run_with_reconnect(session, (ConnectionError,)))
            await capture.recovered.wait()
            task.cancel()
    finally:
        base.log.removeHandler(capture)
    assert tries == 7
    assert capture.messages == [
        "Live log notifications are lost until it answers: ConnectionError: connection refused",
        "Live log notifications are received again.",
    ]
