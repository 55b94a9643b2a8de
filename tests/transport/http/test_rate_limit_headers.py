"""The format of `x-ratelimit-…` headers. Their values are tested in `middleware/test_rate_limiting.py`."""

import pytest

from antiphon.transport.http.rate_limit_headers import format_duration


@pytest.mark.parametrize(
    ("seconds", "written"), [(0.0, "0ms"), (0.85, "850ms"), (1.0, "1s"), (12.5, "12.5s"), (60.0, "1m0s"), (361, "6m1s")]
)
def test_durations_have_the_format_of_openai(seconds: float, written: str) -> None:
    assert format_duration(seconds) == written.encode()
