"""The request gauges of a real vLLM."""

import re
import urllib.request

GAUGE = re.compile(rb"^vllm:num_requests_(?:running|waiting){[^}]*} ([0-9.e+]+)$", re.MULTILINE)


def count_active_requests(url: str) -> int:
    """Return the number of requests that vLLM runs or has queued."""
    page = f"http://{url.partition('://')[2]}/metrics"
    with urllib.request.urlopen(page, timeout=5) as answer:
        return sum_gauges(answer.read())


def sum_gauges(page: bytes) -> int:
    return int(sum(float(number) for number in GAUGE.findall(page)))
