"""The real vLLM that `make test-engines` names: by its URL, or by the folder that it is started from."""

import contextlib
import os
import re
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from tools.vllm_cpu import NAME, Folder, serving

GAUGE = re.compile(rb"^vllm:num_requests_(?:running|waiting){[^}]*} ([0-9.e+]+)$", re.MULTILINE)


def named() -> str:
    """What TEST_VLLM says; nothing if these tests are not wanted."""
    return os.environ.get("TEST_VLLM", "")


def missing() -> str:
    """Why there is none; nothing if there is one."""
    if not named():
        return "TEST_VLLM names no vLLM: `make test-engines` does"
    if "://" not in named() and not Folder(Path(named())).ready:
        return f"there is no vLLM in {named()}: `make vllm` sets one up there"
    return ""


@contextlib.contextmanager
def running(model: str = NAME) -> Iterator[str]:
    """Its URL, as --engine takes it; it is stopped only if it was started here."""
    if "://" in named():
        yield named()
        return
    with serving(Folder(Path(named())), model=model) as url:
        yield url


def working(url: str) -> int:
    """How many requests it says that it works on, or has waiting."""
    page = f"http://{url.partition('://')[2]}/metrics"
    with urllib.request.urlopen(page, timeout=5) as answer:
        return counted(answer.read())


def counted(page: bytes) -> int:
    return int(sum(float(number) for number in GAUGE.findall(page)))
