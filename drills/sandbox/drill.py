"""Runs every program in a container of its own, at each level, as root and as an unprivileged user."""

import asyncio
import json
import os
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from antiphon.config.areas import SandboxLevel
from antiphon.errors import InvalidValue, NotFound, SandboxUnavailable, StorageLimitReached
from antiphon.sandbox.base import CodeResult, ContainerLimits, PrintedText
from antiphon.sandbox.local import LocalSandbox, SandboxSettings
from drills.harness.findings import Figure, Findings
from drills.sandbox.canaries import Canaries, run_canaries
from drills.sandbox.network import AllowedHost, make_network_programs, make_proxy, run_allowed_host
from drills.sandbox.programs import Program, make_attempts, read_burdens
from drills.sandbox.worker_copy import copy_worker
from tests.support.sandboxes import find_processes, find_python

LIMITS = ContainerLimits(memory=512 << 20, disk=32 << 20, files=500, processes=32)
NOBODY = 65534
_MAX_KILL_SECONDS = 1.0
_PATIENCE = 20.0  # beyond the deadline of a program, for a busy machine: later than that, the sandbox hangs
_END_SECONDS = 10.0
_NETWORK_STEP = 2
_MAX_READ = 20  # files of each container


class SandboxSelection(Struct, frozen=True):
    """Every n-th program, and whether those of an unprivileged user and those that use up something run too."""

    step: int
    users: bool = True
    burdens: bool = True


FULL, QUICK, SMALLEST = SandboxSelection(1), SandboxSelection(5), SandboxSelection(4, users=False, burdens=False)


async def sandbox(selection: SandboxSelection, findings: Findings) -> None:
    os.environ["DRILL_SECRET"] = "a secret of the server"
    users = [os.geteuid(), *([NOBODY] if os.geteuid() == 0 and selection.users else [])]
    levels: tuple[SandboxLevel, ...] = ("namespaces", "landlock", "gvisor")
    latencies: list[float] = []
    for level in levels:
        for user in users:
            name = f"{level} as {'root' if user == 0 else f'user {user}'}"
            with tempfile.TemporaryDirectory(prefix="sandbox-drill-") as folder:
                os.chmod(folder, 0o711)
                latencies += await _run_level(Path(folder), level, user, selection, Report(findings, name))
    if findings.trials == 0:
        findings.add_violation("no level of the sandbox is available on this machine")
    findings.add_figure(Figure("kill max s", max(latencies, default=0.0), maximum=_MAX_KILL_SECONDS))


class Report:
    """Findings at one level, as one user."""

    def __init__(self, findings: Findings, name: str) -> None:
        self.findings = findings
        self._name = name

    def add(self, sentence: str) -> None:
        self.findings.add_violation(f"{self._name}: {sentence}")

    def note(self, sentence: str) -> None:
        self.findings.print_line(f"{self._name}: {sentence}")


async def _run_level(
    folder: Path, level: SandboxLevel, user: int, selection: SandboxSelection, report: Report
) -> list[float]:
    settings = SandboxSettings(folder=folder / "sandbox", level=level, python=find_python())
    latencies: list[float] = []
    async with _connect(settings, user, folder) as tested, run_allowed_host() as host:
        try:
            await tested.status()
        except SandboxUnavailable as error:
            report.note(f"not available: {error}")
            return []
        with run_canaries(folder / "canaries", tested.folder, user) as canaries:
            await _write_secret(tested)
            trial = Trial(tested, canaries, host, report)
            attempts = make_attempts(canaries.addresses, level)[:: selection.step]
            programs: Sequence[Program] = [
                *attempts,
                *(read_burdens(level)[:: selection.step] if selection.burdens else ()),
            ]
            if level == "namespaces":
                networked = make_network_programs(canaries.addresses, host.port)
                programs = [*programs, *networked[:: min(selection.step, _NETWORK_STEP)]]
            for number, program in enumerate(programs):
                latencies += await trial.run(f"c{number}", program)
            trial.check_control(programs)
            report.note(f"{len(programs)} programs")
    await asyncio.to_thread(_check_remains, tested, report)
    return latencies


@asynccontextmanager
async def _connect(settings: SandboxSettings, user: int, folder: Path) -> AsyncIterator[LocalSandbox]:
    """A sandbox process of this user, or of another one, which the client then finds running."""
    tested = LocalSandbox(settings)
    process = None
    if user != os.geteuid():
        settings.folder.mkdir(mode=0o711)
        tested.folder.mkdir(mode=0o700)
        os.chown(tested.folder, user, user)
        boot = copy_worker(folder / "program")
        options = json.dumps({"folder": str(tested.folder), "level": settings.level, "max_containers": 64})
        process = await asyncio.to_thread(
            subprocess.Popen, [settings.python, "-I", "-B", str(boot), "sandbox", options],
            user=user, group=user, extra_groups=[], env={}, cwd="/", start_new_session=True,
        )  # fmt: skip
        await asyncio.to_thread(_await_socket, process, tested.folder / "socket")
    try:
        yield tested
    finally:
        await tested.close()
        if process is not None:
            await asyncio.to_thread(process.wait, _END_SECONDS)


async def _write_secret(tested: LocalSandbox) -> None:
    """Make a container whose file others try to read."""

    await tested.start("victim", LIMITS)
    await tested.put("victim", "secret", _yield_once(b"secret of another container"))


async def _yield_once(data: bytes) -> AsyncIterator[bytes]:
    yield data


class Trial:
    """Runs programs and judges them."""

    def __init__(self, tested: LocalSandbox, canaries: Canaries, host: AllowedHost, report: Report) -> None:
        self._tested = tested
        self._canaries = canaries
        self._host = host
        self._report = report

    async def run(self, container: str, program: Program) -> list[float]:
        """Return how long after a limit the program was stopped, if it was."""
        self._report.findings.add_trials()
        await self._tested.start(container, replace(LIMITS, network=program.network))
        try:
            async with asyncio.timeout(program.seconds + _PATIENCE):
                latencies = await self._judge(container, program)
                await self._check_files(container, program)
                await self._check_next_call(container, program)
        except TimeoutError:
            self._report.add(f"{program.name}: the sandbox did not end the call")
            return []
        finally:
            await self._tested.stop(container)
        return latencies

    async def _judge(self, container: str, program: Program) -> list[float]:
        output, crossed = "", 0.0
        serve = make_proxy().serve if program.network else None
        async for event in self._tested.run(container, program.code, program.seconds, serve):
            match event:
                case PrintedText(text=text):
                    output += text[:10_000]
                    crossed = crossed or (time.monotonic() if "LIMIT" in text else 0.0)
                case CodeResult() as result:
                    pass
        if "ESCAPED" in output:
            self._report.add(f"{program.name} was not refused: {output[:200]!r}")
        self._check_canaries(program)
        stopped = result.outcome in ("timeout", "killed")
        if (program.is_stopped or crossed) and not stopped:
            self._report.add(f"{program.name} was not stopped: {result.outcome}")
        if crossed:
            return [time.monotonic() - crossed] if result.outcome == "killed" else []
        return [result.seconds - program.seconds] if program.is_stopped else []

    def _check_canaries(self, program: Program) -> None:
        for name in (*self._canaries.find_reached(), *self._host.find_reached()):
            self._report.add(f"{program.name} reached {name}")

    async def _check_files(self, container: str, program: Program) -> None:
        """A file is written as for an upload, and files are read: those of the host must not be reached by them."""
        with suppress(InvalidValue, NotFound, StorageLimitReached):
            await self._tested.put(container, "uploads/file", _yield_once(b"uploaded"))
        found = ["uploads/file", *[file.path for file in await self._tested.list_files(container)]]
        for path in found[:_MAX_READ]:
            with suppress(InvalidValue, NotFound):
                if any([b"secret" in piece async for piece in self._tested.get(container, path)]):
                    self._report.add(f"{program.name}: the server read a file of the host as {path!r}")
        self._check_canaries(program)

    def check_control(self, programs: Sequence[Program]) -> None:
        """The program that may reach the allowed host must have done so: otherwise the others show nothing."""
        if any(program.name == "control" for program in programs) and not self._host.greeted:
            self._report.add("the allowed host was not reached by the control")

    async def _check_next_call(self, container: str, program: Program) -> None:
        """The container must work after any program, at the latest in a second call with a new kernel."""
        for _ in range(2):
            texts = []
            async for event in self._tested.run(container, "print(6 * 7)", 20.0):
                if isinstance(event, PrintedText):
                    texts.append(event.text)
            if "42" in "".join(texts):
                return
        self._report.add(f"{program.name}: the container is unusable afterwards: {''.join(texts)[:200]!r}")


def _check_remains(tested: LocalSandbox, report: Report) -> None:
    """When the last client has gone, no process, mount or file may remain."""
    if processes := _await_end(tested):
        report.add(f"{len(processes)} processes remain")
    if str(tested.folder) in Path("/proc/self/mountinfo").read_text():
        report.add("mounts remain")
    if os.path.isdir(tested.folder / "containers") and os.listdir(tested.folder / "containers"):
        report.add("files of containers remain")


def _await_socket(process: "subprocess.Popen[bytes]", path: Path) -> None:
    while process.poll() is None and not path.exists():
        time.sleep(0.05)


def _await_end(tested: LocalSandbox) -> list[int]:
    deadline = time.monotonic() + _END_SECONDS
    while (processes := find_processes(tested.folder)) and time.monotonic() < deadline:
        time.sleep(0.05)
    return processes
