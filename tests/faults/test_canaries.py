"""Forty secrets pass through every part of the server, including its error paths. None may appear in a log, a metric or
a trace.
"""

from pathlib import Path

import pytest

from tests.support.canaries import run_canaries


@pytest.mark.anyio
@pytest.mark.shows("H4.2")
async def test_no_secret_is_in_any_log_metric_or_trace(tmp_path: Path) -> None:
    canary_run = await run_canaries(tmp_path)
    assert len(canary_run.secrets) >= 40
    assert all(len(text) > 1000 for text in canary_run.outputs.values())
    assert canary_run.find_leaks() == []
