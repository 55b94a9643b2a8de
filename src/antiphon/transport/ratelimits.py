"""The headers that tell clients how much of their limits is left, as OpenAI writes them: `x-ratelimit-…`.

They are made when a reply begins, of what the counters say then. A limit that there is not has no headers.
"""

from antiphon.service.access.rate_limits import Account


def rate_headers(account: Account) -> list[tuple[bytes, bytes]]:
    requests, tokens = account.standing()
    headers = []
    if requests is not None:
        headers += [
            (b"x-ratelimit-limit-requests", b"%d" % requests.limit),
            (b"x-ratelimit-remaining-requests", b"%d" % requests.remaining),
            (b"x-ratelimit-reset-requests", duration(requests.reset)),
        ]
    if tokens is not None:
        headers += [
            (b"x-ratelimit-limit-tokens", b"%d" % tokens.limit),
            (b"x-ratelimit-remaining-tokens", b"%d" % tokens.remaining),
            (b"x-ratelimit-reset-tokens", duration(tokens.reset)),
        ]
    return headers


def duration(seconds: float) -> bytes:
    """As Go writes it: 850ms, 12.5s, 1m0s."""
    if seconds < 1.0:
        return b"%.0fms" % (seconds * 1000)
    if seconds < 60.0:
        return (b"%.3f" % seconds).rstrip(b"0").rstrip(b".") + b"s"
    return b"%dm%ds" % (seconds // 60, seconds % 60)
