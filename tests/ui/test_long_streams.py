"""A stream of 20,000 events, in a browser: every frame is short while it arrives, and memory stays small."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.chromium import Browser, Page
from tests.support.server_process import run_server

pytestmark = [pytest.mark.needs("chromium"), pytest.mark.quiet_cores]

EVENTS = 20_000
MAX_FRAME_SECONDS = 0.032
MAX_HEAP = 80 * 1024 * 1024
# The least of several runs counts: a busy machine makes processor time longer, too (shared caches), never shorter.
ATTEMPTS = 3
ENDED = "document.querySelector('.figures, .state-ended')"
STEPS = """
    { say = ["Many ", "words, ", "i ", "**all** ", "in ", "bits, ", "it ", "is ", "so ", "long.\\n\\n"], repeat = 50 },
    { delay = 0.05 },
"""
SCRIPT = f"[[reply]]\nsteps = [{STEPS * 40}]"


@contextmanager
def open_page(browser: Browser, script: Path) -> Iterator[Page]:
    with run_server("--engine", "fake", "--fake-script", str(script)) as server, browser.new_page() as page:
        page.open(f"{server.url}/")
        page.wait_for("document.querySelector('#model option')")
        yield page
        page.check(server.url)


def measure_stream(page: Page, view: str) -> tuple[float, int]:
    """Return the processor time of the longest frame, and the memory after the stream."""
    page.fill("#draft", "long")
    page.click("form.composer button.primary")
    page.wait_for("document.querySelector('.message.assistant')")
    if view == "wire":
        page.click("a[href='/ui/wire']")
        page.wait_for("document.querySelector('event-list [role=option]')")
    with page.record_frames() as frames:
        page.wait_for(ENDED, seconds=200)
    page.send("HeapProfiler.collectGarbage")
    heap = int(page.send("Runtime.getHeapUsage")["usedSize"])
    if view == "talk":
        page.click(".figures a")
        page.wait_for("document.querySelector('.wire .muted')")
    assert int(page.evaluate("document.querySelector('.wire .muted').textContent").split()[0]) >= EVENTS
    assert page.evaluate("document.querySelectorAll('event-list [role=option]').length") < 100
    assert len(frames) > 20
    return max(frames), heap


@pytest.mark.parametrize("view", ["talk", "wire"])
@pytest.mark.shows("H7.22")
def test_a_long_stream_is_shown_smoothly(browser: Browser, tmp_path: Path, view: str) -> None:
    script = tmp_path / "script.toml"
    script.write_text(SCRIPT)
    longest: list[float] = []
    while not longest or (min(longest) > MAX_FRAME_SECONDS and len(longest) < ATTEMPTS):
        with open_page(browser, script) as page:
            frame, heap = measure_stream(page, view)
        longest.append(frame)
        assert heap <= MAX_HEAP
    assert min(longest) <= MAX_FRAME_SECONDS, longest
