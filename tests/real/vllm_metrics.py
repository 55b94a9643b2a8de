"""What a real vLLM says that it works on."""

import re
import urllib.request

GAUGE = re.compile(rb"^vllm:num_requests_(?:running|waiting){[^}]*} ([0-9.e+]+)$", re.MULTILINE)


def working(url: str) -> int:
    """How many requests it says that it works on, or has waiting."""
    page = f"http://{url.partition('://')[2]}/metrics"
    with urllib.request.urlopen(page, timeout=5) as answer:
        return counted(answer.read())


def counted(page: bytes) -> int:
    return int(sum(float(number) for number in GAUGE.findall(page)))
