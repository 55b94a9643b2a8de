"""A real browser for tests: Chromium without a window, controlled over the DevTools protocol (CDP)."""

import base64
import contextlib
import json
import re
import subprocess
import tempfile
import time
from bisect import bisect
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from websockets.sync.client import connect
from websockets.sync.connection import Connection

from tests.plugins.services import find_chromium

_START_SECONDS = 60.0
_WAIT_SECONDS = 60.0
_FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--remote-debugging-port=0",
    # frames and timers run although nobody looks
    "--disable-renderer-backgrounding", "--disable-background-timer-throttling",
)  # fmt: skip
# Text of keys that insert something; other keys have a name only.
_KEY_CODES = {"Enter": 13, "Tab": 9, "Escape": 27, "ArrowDown": 40, "ArrowUp": 38, " ": 32}


class PageNavigated(AssertionError):
    """The page went elsewhere while it computed something."""


class Page:
    """One tab. Everything that a page should not do is collected in `complaints` and `urls`."""

    def __init__(self, connection: Connection, session: str) -> None:
        self._connection, self._session = connection, session
        self._number = 0
        self.complaints: list[str] = []  # console errors, exceptions, and violations of the content security policy
        self.urls: list[str] = []  # requested
        self._trace: list[dict[str, Any]] = []
        self._is_traced = False
        for domain in ("Page", "Runtime", "Log", "Network", "Audits"):
            self.send(f"{domain}.enable")

    def send(self, method: str, **params: Any) -> dict[str, Any]:
        """Send a command and return its result; events that arrive meanwhile are collected."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": params, "sessionId": self._session}
        self._connection.send(json.dumps(message))
        while True:
            reply = json.loads(self._connection.recv(timeout=_WAIT_SECONDS * 2))
            if reply.get("id") == self._number and reply.get("sessionId") == self._session:
                if "navigated" in reply.get("error", {}).get("message", ""):
                    raise PageNavigated(reply["error"]["message"])
                assert "error" not in reply, f"{method}: {reply['error']}"
                result: dict[str, Any] = reply["result"]
                return result
            if reply.get("sessionId") == self._session:
                self._collect(reply["method"], reply["params"])

    def open(self, url: str) -> None:
        """Open a URL and wait until it is loaded."""
        self.send("Page.navigate", url=url)
        self.wait_for("document.readyState === 'complete' && location.href !== 'about:blank'")

    def evaluate(self, expression: str) -> Any:
        """Return the value of an expression, or of the promise that it returns."""
        reply = self.send("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in reply, f"{expression}: {reply['exceptionDetails']}"
        return reply["result"].get("value")

    def wait_for(self, condition: str, seconds: float = _WAIT_SECONDS) -> None:
        """Wait until an expression is true. A navigation meanwhile starts the wait again."""
        deadline = time.monotonic() + seconds
        poll = (
            "new Promise((resolve) => { const check = () => { let found = false; try { found = Boolean(%s); } catch {}"
            "if (found || performance.now() > end) resolve(found); else setTimeout(check, 20); };"
            "const end = performance.now() + %d; check(); })"
        )
        while (left := deadline - time.monotonic()) > 0:
            expression = poll % (condition, left * 1000)
            with contextlib.suppress(PageNavigated):
                reply = self.send("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
                if reply["result"].get("value") is True:
                    return
        raise AssertionError(f"not within {seconds} s: {condition}\n{self.complaints}\n{self.text()[-2000:]}")

    def text(self) -> str:
        """Return the text that the page shows."""
        return str(self.evaluate("document.body.innerText"))

    def wait_for_text(self, text: str) -> None:
        self.wait_for(f"document.body.innerText.includes({json.dumps(text)})")

    def click(self, selector: str) -> None:
        self.wait_for(f"document.querySelector({json.dumps(selector)})")
        self.evaluate(f"document.querySelector({json.dumps(selector)}).click()")

    def fill(self, selector: str, value: str) -> None:
        """Type into a field or choose an option, as far as the page can tell."""
        self.wait_for(f"document.querySelector({json.dumps(selector)})")
        self.evaluate(
            f"(() => {{ const one = document.querySelector({json.dumps(selector)}); one.value = {json.dumps(value)};"
            "for (const name of ['input', 'change']) one.dispatchEvent(new Event(name, {bubbles: true})); })()"
        )

    def type(self, text: str) -> None:
        """Insert text at the cursor."""
        self.send("Input.insertText", text=text)

    def press(self, key: str, modifiers: int = 0) -> None:
        """Press and release a key. Modifiers as in CDP: 8 is Shift."""
        code = _KEY_CODES[key]
        text = {"Enter": "\r", " ": " "}.get(key)
        down = {"type": "keyDown" if text else "rawKeyDown", **({"text": text} if text else {})}
        for event in (down, {"type": "keyUp"}):
            self.send(
                "Input.dispatchKeyEvent", key=key, code=key, windowsVirtualKeyCode=code, modifiers=modifiers, **event
            )

    def set_size(self, width: int, height: int = 900) -> None:
        self.send(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 500
        )

    def set_scheme(self, scheme: str) -> None:
        """Prefer `light` or `dark` colours."""
        self.send("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def screenshot(self, path: Path) -> None:
        path.write_bytes(base64.b64decode(self.send("Page.captureScreenshot", format="png")["data"]))

    @contextlib.contextmanager
    def record_frames(self) -> Iterator[list[float]]:
        """Collect what the page's thread works for each frame while the block runs, in seconds of processor time.

        The tasks of the thread come from the browser's trace, with their times on the processor: time in which other
        processes of the machine run does not count, and neither does waiting. Frames are counted by the page itself.
        Requests are not observed meanwhile, since that costs time for every message of a WebSocket.
        """
        frames: list[float] = []
        categories = ["disabled-by-default-devtools.timeline", "blink.user_timing"]
        self._trace, self._is_traced = [], False
        self.send("Network.disable")
        self.send("Tracing.start", traceConfig={"includedCategories": categories}, transferMode="ReportEvents")
        self.evaluate(
            "(() => { window.counts = true; const count = () => { performance.mark('frame'); performance.clearMarks();"
            "if (counts) requestAnimationFrame(count); }; count(); })()"
        )
        yield frames
        self.evaluate("window.counts = false")
        self.send("Tracing.end")
        deadline = time.monotonic() + _WAIT_SECONDS
        while not self._is_traced and time.monotonic() < deadline:
            self.evaluate("1")  # collects what has arrived
        self.send("Network.enable")
        frames += _sum_frames(self._trace)

    def check(self, origin: str, allowed: Sequence[str] = ()) -> None:
        """Assert that the page has complained about nothing but `allowed`, and has loaded from this origin alone."""
        self.evaluate("1")  # collects what has arrived
        complaints = [one for one in self.complaints if not any(re.search(pattern, one) for pattern in allowed)]
        assert not complaints, complaints
        foreign = [url for url in self.urls if not url.startswith((f"{origin}/", "data:", "blob:", "about:"))]
        assert not foreign, foreign

    def _collect(self, method: str, params: dict[str, Any]) -> None:
        match method:
            case "Runtime.consoleAPICalled" if params["type"] in ("error", "warning", "assert"):
                self.complaints.append(f"console: {params['args']}")
            case "Runtime.exceptionThrown":
                self.complaints.append(f"exception: {params['exceptionDetails']}")
            case "Log.entryAdded" if params["entry"]["level"] in ("error", "warning"):
                entry = params["entry"]
                self.complaints.append(f"{entry['source']}: {entry['text']} {entry.get('url', '')}")
            case "Audits.issueAdded" if params["issue"]["code"] == "ContentSecurityPolicyIssue":
                self.complaints.append(f"policy: {params['issue']['details']}")
            case "Tracing.dataCollected":
                self._trace += params["value"]
            case "Tracing.tracingComplete":
                self._is_traced = True
            case "Network.requestWillBeSent":
                self.urls.append(params["request"]["url"])


def _sum_frames(trace: Sequence[dict[str, Any]]) -> list[float]:
    """Return the processor time of the tasks between any two frames."""
    marks = sorted((event["ts"], event["pid"], event["tid"]) for event in trace if event["name"] == "frame")
    times = [time for time, _, _ in marks]
    sums = [0.0] * (len(times) + 1)
    for event in trace:
        if event["name"] == "RunTask" and "tdur" in event and (event["pid"], event["tid"]) == marks[0][1:]:
            sums[bisect(times, event["ts"])] += event["tdur"] / 1_000_000
    return sums[1:-1]


class Browser:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._number = 0

    @contextlib.contextmanager
    def new_page(self) -> Iterator[Page]:
        """A tab with its own session storage; the page uses no other. Tabs share the cache of scripts, without which
        a page takes twice the CPU time.
        """
        target = self._send("Target.createTarget", url="about:blank")["targetId"]
        session = self._send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        try:
            yield Page(self._connection, session)
        finally:
            self._send("Target.closeTarget", targetId=target)

    def _send(self, method: str, **params: Any) -> dict[str, Any]:
        self._number += 1
        self._connection.send(json.dumps({"id": self._number, "method": method, "params": params}))
        while True:
            reply = json.loads(self._connection.recv(timeout=_WAIT_SECONDS))
            if reply.get("id") == self._number and "sessionId" not in reply:
                result: dict[str, Any] = reply["result"]
                return result


@contextlib.contextmanager
def run_browser() -> Iterator[Browser]:
    """Run the browser with an empty profile."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        command = [find_chromium() or "", *_FLAGS, f"--user-data-dir={profile}", "about:blank"]
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        try:
            with connect(_read_address(process), max_size=None, compression=None) as connection:
                yield Browser(connection)
        finally:
            process.kill()
            process.wait(timeout=_START_SECONDS)
            assert process.stderr is not None
            process.stderr.close()


def _read_address(process: "subprocess.Popen[bytes]") -> str:
    """Return the address that the browser prints when it listens."""
    assert process.stderr is not None
    for line in process.stderr:
        if found := re.search(rb"DevTools listening on (ws://\S+)", line):
            return found[1].decode()
    raise RuntimeError(f"the browser ended with {process.wait()}")
