"""The `x-ratelimit-…` headers, which report the remaining limits in OpenAI's format.

They are rendered when a reply begins, from the counters at that time. Limits that are not set have no headers.
"""

from antiphon.service.access.charges import LimitSet
from antiphon.transport.http.channel import Header


def render_rate_headers(limit_set: LimitSet) -> list[Header]:
    """Render the `x-ratelimit-…` headers."""
    requests, tokens = limit_set.get_status()
    headers = []
    if requests is not None:
        headers += [
            (b"x-ratelimit-limit-requests", b"%d" % requests.limit),
            (b"x-ratelimit-remaining-requests", b"%d" % requests.remaining),
            (b"x-ratelimit-reset-requests", format_duration(requests.reset)),
        ]
    if tokens is not None:
        headers += [
            (b"x-ratelimit-limit-tokens", b"%d" % tokens.limit),
            (b"x-ratelimit-remaining-tokens", b"%d" % tokens.remaining),
            (b"x-ratelimit-reset-tokens", format_duration(tokens.reset)),
        ]
    return headers


def format_duration(seconds: float) -> bytes:
    """Format a duration as Go does: 850ms, 12.5s, 1m0s."""
    if seconds < 1.0:
        return b"%.0fms" % (seconds * 1000)
    if seconds < 60.0:
        return (b"%.3f" % seconds).rstrip(b"0").rstrip(b".") + b"s"
    return b"%dm%ds" % (seconds // 60, seconds % 60)
