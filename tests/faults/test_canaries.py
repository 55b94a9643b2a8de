"""Forty secrets go through every part of the server, and through its errors. None is in a log, a metric or a trace."""

from pathlib import Path

import pytest

from tests.support.canaries import flown


@pytest.mark.anyio
@pytest.mark.shows("H4.2")
async def test_no_secret_is_in_any_log_metric_or_trace(tmp_path: Path) -> None:
    flight = await flown(tmp_path)
    assert len(flight.secrets) >= 40
    assert all(len(text) > 1000 for text in flight.written.values())
    assert flight.found() == []
