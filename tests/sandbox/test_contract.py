"""A real sandbox process at each level that this machine allows, and a worker as another host would use it.

Covers `sandbox/base.py`, `sandbox/client.py`, `sandbox/connection.py`, `sandbox/link.py`, `sandbox/local.py`,
`sandbox/worker/main.py`, `sandbox/worker/container.py`, `sandbox/worker/forking.py`,
`sandbox/worker/zygote.py`, `sandbox/worker/kernel.py`,
`sandbox/worker/confinement.py`, `sandbox/worker/namespaces.py`, `sandbox/worker/landlock.py`,
`sandbox/worker/gvisor.py`, `sandbox/worker/processes.py`, `sandbox/worker/syscalls.py`.
"""

import asyncio
import os
import signal
import subprocess
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import pytest
from msgspec.structs import replace

from antiphon.config import Config
from antiphon.config.areas import SandboxLevel
from antiphon.core.images import read_image_info
from antiphon.errors import Busy, InvalidValue, NotFound, SandboxUnavailable, StorageLimitReached, UnknownContainer
from antiphon.sandbox.base import CodeResult, PrintedText, make_shell_cell
from antiphon.sandbox.local import LocalSandbox, SandboxSettings, make_sandbox_settings
from antiphon.sandbox.worker.processes import list_tree
from antiphon.sandbox.worker_pool import WorkerPool
from tests.support.sandboxes import (
    LEVELS,
    LIMITS,
    PACKAGES_PYTHON,
    WorkerProcess,
    find_processes,
    keep_sandbox,
    run_code,
    run_sandbox,
    run_worker,
)

pytestmark = pytest.mark.anyio

MANY_PROCESSES = """
import os, time
for _ in range(15):
    if os.fork() == 0:
        x = bytearray(b"x" * (60 << 20))
        time.sleep(60)
time.sleep(60)
"""


Sandbox = LocalSandbox | WorkerPool


@pytest.fixture(scope="module", params=[*LEVELS, "worker"])
def connect(request: pytest.FixtureRequest) -> Iterator[Callable[[], Sandbox]]:
    """A sandbox process for all tests, which a connection keeps alive."""
    with run_worker() if request.param == "worker" else keep_sandbox(request.param) as found:
        if isinstance(found, str):
            pytest.skip(f"permission: no sandbox of this level: {found}")
        yield found.make_pool if isinstance(found, WorkerProcess) else partial(LocalSandbox, found)


@pytest.fixture
async def sandbox(connect: Callable[[], Sandbox]) -> AsyncIterator[Sandbox]:
    found = connect()
    await found.start("c", LIMITS)
    yield found
    try:
        with suppress(UnknownContainer):
            await found.stop("c")
    finally:
        await found.close()


@pytest.fixture(params=LEVELS)
async def lone_sandbox(request: pytest.FixtureRequest) -> AsyncIterator[LocalSandbox]:
    """A sandbox process for one test."""
    async with run_sandbox(request.param, max_containers=1) as found:
        try:
            await found.start("c", LIMITS)
        except SandboxUnavailable as error:
            pytest.skip(f"permission: no sandbox of this level: {error}")
        yield found


async def _pieces(*parts: bytes) -> AsyncIterator[bytes]:
    for part in parts:
        yield part


def _read_session_group(pid: int) -> str:
    """Return the group by which the kernel divides CPU time among sessions; "" if it does not."""
    path = Path(f"/proc/{pid}/autogroup")
    return path.read_text() if path.exists() else ""


async def _await_end(sandbox: LocalSandbox) -> None:
    deadline = time.monotonic() + 10
    while find_processes(sandbox.folder):
        assert time.monotonic() < deadline
        await asyncio.to_thread(os.sched_yield)


async def test_variables_imports_and_files_are_kept_between_calls(sandbox: Sandbox) -> None:
    await run_code(sandbox, "import math\nx = 20")
    await run_code(sandbox, "open('/mnt/data/a.txt', 'w').write(str(x + 1))")
    assert (await run_code(sandbox, "math.floor(x), open('/mnt/data/a.txt').read()")).stdout == "(20, '21')\n"


async def test_prints_the_last_value_and_a_traceback_are_shown(sandbox: Sandbox) -> None:
    record = await run_code(sandbox, "import sys\nprint('out')\nprint('err', file=sys.stderr)\n6 * 7")
    assert (record.stdout, record.stderr, record.result.outcome) == ("out\n42\n", "err\n", "completed")
    record = await run_code(sandbox, "def f():\n    return 1 / 0\nf()")
    assert record.result.outcome == "raised"
    assert record.stderr.startswith('Traceback (most recent call last):\n  File "<cell 2>", line 3')
    assert "return 1 / 0" in record.stderr
    assert (await run_code(sandbox, "import asyncio\nawait asyncio.sleep(0, 'awaited')")).stdout == "'awaited'\n"
    assert (await run_code(sandbox, "await asyncio.sleep(0)\n1 / 0")).stderr.count("File") == 1


async def test_code_with_a_syntax_error_or_an_exit_leaves_the_kernel_alone(sandbox: Sandbox) -> None:
    await run_code(sandbox, "x = 1")
    refused = (await run_code(sandbox, "x = (")).stderr
    assert refused.startswith('  File "<cell 2>", line 1\n    x = (\n')
    assert "SyntaxError" in refused
    assert (await run_code(sandbox, "exit()")).result.outcome == "completed"
    assert (await run_code(sandbox, "x")).stdout == "1\n"


async def test_output_beyond_a_mebibyte_is_counted_but_not_kept(sandbox: Sandbox) -> None:
    record = await run_code(sandbox, "for _ in range(300): print('x' * 9_999)")
    assert len(record.stdout) == 1 << 20
    assert record.result.dropped == 3_000_000 - (1 << 20)


async def test_files_that_a_call_changes_are_listed(sandbox: Sandbox) -> None:
    await sandbox.put("c", "in/table.csv", _pieces(b"a,b\n", b"1,2\n"))
    await sandbox.put("c", "empty", _pieces())
    code = "import shutil, os\nos.mkdir('/mnt/data/out')\nshutil.copy('/mnt/data/in/table.csv', '/mnt/data/out/b')"
    record = await run_code(sandbox, code)
    assert [(file.path, file.size) for file in record.result.changed] == [("out/b", 8)]
    assert (await run_code(sandbox, "1")).result.changed == ()
    assert [file.path for file in await sandbox.list_files("c")] == ["empty", "in/table.csv", "out/b"]
    assert b"".join([piece async for piece in sandbox.get("c", "out/b")]) == b"a,b\n1,2\n"
    await sandbox.remove("c", "out/b")
    with pytest.raises(NotFound):
        await sandbox.remove("c", "out/b")


LONG_NAMES = """
import os
folder = '/mnt/data/' + '/'.join(['é' * 120] * 4)
os.makedirs(folder), os.chdir(folder)
for n in range(1200): os.close(os.open(f'{n}', os.O_CREAT))
"""


async def test_more_changed_files_than_a_message_has_room_for_are_counted(sandbox: Sandbox) -> None:
    await sandbox.start("many", replace(LIMITS, files=2000))
    record = await run_code(sandbox, LONG_NAMES, 60, "many")
    listed = len(record.result.changed)
    assert (1000 < listed < 1200, record.result.unlisted) == (True, 1200 - listed)
    assert len(await sandbox.list_files("many")) == listed
    assert (await run_code(sandbox, "6 * 7")).stdout == "42\n"
    await sandbox.stop("many")


async def test_a_file_whose_path_is_too_long_to_read_it_is_not_listed(sandbox: Sandbox) -> None:
    code = "import os\nfor n in range(9): os.mkdir('x' * 255), os.chdir('x' * 255), open('f', 'w')"
    record = await run_code(sandbox, code)
    assert [len(file.path) for file in record.result.changed] == [257, 513, 769]


async def test_code_that_no_message_has_room_for_is_refused_and_ends_no_container(sandbox: Sandbox) -> None:
    with pytest.raises(InvalidValue, match="at most 8,388,608 bytes"):
        await run_code(sandbox, "#" * ((8 << 20) + 1))
    assert (await run_code(sandbox, "6 * 7")).stdout == "42\n"


_CHANGES = """
import os
folder = '/home/oai/skills/pdf-1'
def attempt(name, action):
    try:
        action()
    except OSError:
        return
    print('possible:', name)
attempt('write', lambda: open(folder + '/run.sh', 'a').write('x'))
attempt('truncate', lambda: os.truncate(folder + '/run.sh', 0))
attempt('create', lambda: open(folder + '/new', 'w'))
attempt('create beside', lambda: open('/home/oai/skills/new', 'w'))
attempt('folder', lambda: os.mkdir('/home/oai/skills/other'))
attempt('unlink', lambda: os.unlink(folder + '/SKILL.md'))
attempt('rename', lambda: os.rename(folder, '/home/oai/skills/renamed'))
attempt('move in', lambda: (open('/mnt/data/m', 'w').close(), os.rename('/mnt/data/m', folder + '/m')))
attempt('move out', lambda: os.rename(folder + '/SKILL.md', '/mnt/data/SKILL.md'))
attempt('link', lambda: (os.link(folder + '/run.sh', '/mnt/data/l'), open('/mnt/data/l', 'a').write('x')))
attempt('symlink', lambda: (os.symlink(folder + '/run.sh', '/mnt/data/s'), open('/mnt/data/s', 'a').write('x')))
attempt('proc', lambda: open(f"/proc/self/fd/{os.open(folder + '/run.sh', os.O_RDONLY)}", 'w'))
os.chmod(folder + '/run.sh', 0o777) if os.access(folder + '/run.sh', os.W_OK) else None
attempt('write after chmod', lambda: open(folder + '/run.sh', 'a').write('x'))
"""


async def test_code_reads_and_runs_skills_and_cannot_change_them(sandbox: Sandbox) -> None:
    await sandbox.put("c", "pdf-1/SKILL.md", _pieces(b"Read ", b"me."), "skills")
    await sandbox.put("c", "pdf-1/run.sh", _pieces(b"#!/bin/sh\necho ran $1\n"), "skills")
    assert [file.path for file in await sandbox.list_files("c", "skills")] == ["pdf-1/SKILL.md", "pdf-1/run.sh"]
    assert await sandbox.list_files("c") == ()
    path = "/home/oai/skills/pdf-1"
    assert (await run_code(sandbox, f"open('{path}/SKILL.md').read()")).stdout == "'Read me.'\n"
    commands = f"(cd {path} && echo *); cat {path}/SKILL.md; {path}/run.sh 1; cd {path} && ./run.sh 2"
    record = await run_code(sandbox, make_shell_cell(commands))
    assert (record.stdout, record.result.changed) == ("SKILL.md run.sh\nRead me.ran 1\nran 2\n", ())
    assert (await run_code(sandbox, _CHANGES)).stdout == ""
    assert (await run_code(sandbox, f"open('{path}/run.sh').read()")).stdout == "'#!/bin/sh\\necho ran $1\\n'\n"
    await sandbox.put("c", "csv-2/SKILL.md", _pieces(b"later"), "skills")  # a running container gets it too
    assert (await run_code(sandbox, "open('/home/oai/skills/csv-2/SKILL.md').read()")).stdout == "'later'\n"


async def test_skills_have_the_room_of_a_disk_and_their_paths_are_checked(sandbox: Sandbox) -> None:
    for path in ("../evil", "/evil", "a/../../evil"):
        with pytest.raises(InvalidValue):
            await sandbox.put("c", path, _pieces(b"x"), "skills")
    with pytest.raises(StorageLimitReached):
        await sandbox.put("c", "big", _pieces(*[bytes(1 << 20)] * 33), "skills")
    await sandbox.put("c", "other", _pieces(bytes(1 << 20)))


async def test_links_fifos_and_paths_that_leave_the_folder_are_refused(sandbox: Sandbox) -> None:
    code = "import os\nos.symlink('/etc/passwd', 'link')\nos.symlink('/etc', 'folder')\nos.mkfifo('fifo')"
    assert (await run_code(sandbox, code)).result.outcome == "completed"
    # A FIFO in gVisor is no file of the host.
    fifos = () if (await sandbox.status()).level == "gvisor" else ("fifo",)
    for path in ("link", "folder/passwd", *fifos, "../tmp/x", "/etc/passwd", "a//b", "a\nb", "x" * 256, ""):
        with pytest.raises((InvalidValue, NotFound)):
            _ = [piece async for piece in sandbox.get("c", path)]
        with pytest.raises(InvalidValue):
            await sandbox.put("c", path, _pieces(b"x"))
    assert await sandbox.list_files("c") == ()
    with pytest.raises(StorageLimitReached):
        await sandbox.put("c", "large", _pieces(b"x" * (1 << 20) * 33))


async def test_code_is_interrupted_at_its_deadline_and_the_kernel_lives(sandbox: Sandbox) -> None:
    record = await run_code(sandbox, "x = 5\nwhile True: pass", seconds=0.5)
    assert record.result.outcome == "timeout"
    assert "KeyboardInterrupt" in record.stderr
    assert (await run_code(sandbox, "x")).stdout == "5\n"


@contextmanager
def occupy_cpu(pid: int) -> Iterator[None]:
    """Leave a process about one 200th of a CPU."""
    cpu = min(os.sched_getaffinity(0))
    os.sched_setaffinity(pid, {cpu})
    loop = ("sh", "-c", "while :; do :; done")
    others = [subprocess.Popen(loop, start_new_session=True) for _ in range(8)]  # CPUs are divided among sessions
    try:
        for other in others:
            os.sched_setaffinity(other.pid, {cpu})
        yield
    finally:
        for other in others:
            other.kill()
            other.wait()


@pytest.mark.parametrize("level", LEVELS[:2])  # gVisor has other processes
async def test_code_that_gets_no_cpu_at_its_deadline_keeps_the_variables(level: SandboxLevel) -> None:
    async with run_sandbox(level) as sandbox:
        try:
            await sandbox.start("c", LIMITS)
        except SandboxUnavailable as error:
            pytest.skip(f"permission: no sandbox of this level: {error}")
        with occupy_cpu(find_processes(sandbox.folder)[-1]):
            record = await run_code(sandbox, "x = 5\nwhile True: pass", seconds=0.5)
        assert record.result.outcome == "timeout"
        assert (await run_code(sandbox, "x")).stdout == "5\n"


@pytest.mark.quiet_cores
async def test_code_that_ignores_interrupts_is_killed_and_the_next_call_says_so(sandbox: Sandbox) -> None:
    await sandbox.put("c", "kept", _pieces(b"1"))
    code = "import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nwhile True: pass"
    record = await run_code(sandbox, code, seconds=0.3)
    assert (record.result.outcome, record.result.reason) == ("killed", "timeout")
    record = await run_code(sandbox, "open('/mnt/data/kept').read()")
    assert (record.stdout, record.result.restarted) == ("'1'\n", True)
    assert not (await run_code(sandbox, "1")).result.restarted


@pytest.mark.quiet_cores  # code that gets no CPU for two seconds does not notice the interrupt, and is killed
async def test_a_closed_iterator_interrupts_the_code(sandbox: Sandbox) -> None:
    events = sandbox.run("c", "x = 7\nprint('begun')\nimport time\ntime.sleep(60)", 60)
    assert await anext(events) == PrintedText("stdout", "begun\n")
    async with asyncio.timeout(10):
        await events.aclose()
        assert (await run_code(sandbox, "x")).stdout == "7\n"


async def test_code_that_ignores_an_interrupt_is_killed(sandbox: Sandbox) -> None:
    code = "import signal, time\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nprint('begun')\ntime.sleep(60)"
    events = sandbox.run("c", code, 60)
    assert await anext(events) == PrintedText("stdout", "begun\n")
    async with asyncio.timeout(40):
        await sandbox.interrupt("c")
        result = [event async for event in events][-1]
    assert isinstance(result, CodeResult)
    assert (result.outcome, result.reason) == ("killed", "interrupted")


@pytest.mark.parametrize("code", ["x = 2\nwhile True: pass", make_shell_cell("sleep 60")])
async def test_an_interrupt_before_the_code_has_begun_keeps_the_variables(
    lone_sandbox: LocalSandbox, code: str
) -> None:
    await run_code(lone_sandbox, "x = 1")
    kernel = find_processes(lone_sandbox.folder)[-1]
    os.kill(kernel, signal.SIGSTOP)
    call = asyncio.create_task(run_code(lone_sandbox, code))
    await asyncio.sleep(0)  # it is sent before what follows
    interrupt = asyncio.create_task(lone_sandbox.interrupt("c"))
    await lone_sandbox.status()
    os.kill(kernel, signal.SIGCONT)
    await interrupt
    assert (await call).result.outcome == "interrupted"
    assert (await run_code(lone_sandbox, "x in (1, 2)")).stdout == "True\n"


async def test_calls_of_one_container_wait_for_each_other(sandbox: Sandbox) -> None:
    codes = [f"found = [*globals().get('found', []), {number}]\nfound" for number in range(5)]
    records = await asyncio.gather(*(run_code(sandbox, code) for code in codes))
    assert records[-1].stdout == "[0, 1, 2, 3, 4]\n"


HELD = "print('begun')\nimport os, time\nwhile not os.path.exists('/mnt/data/go'): time.sleep(0.01)\n'ended'"


async def test_a_call_that_leaves_the_queue_is_not_run_and_interrupts_no_other_one(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = sandbox.run("c", HELD, 20)
    assert await anext(first) == PrintedText("stdout", "begun\n")
    left = asyncio.create_task(run_code(sandbox, "x = 1"))
    await sandbox.status()
    left.cancel()
    with suppress(asyncio.CancelledError):
        await left
    monkeypatch.setattr("antiphon.sandbox.client._QUEUE_SECONDS", 0.1)
    with pytest.raises(Busy, match=r"Earlier calls have used the container for 0\.1 s"):
        await run_code(sandbox, "x = 1")
    monkeypatch.undo()
    await sandbox.put("c", "go", _pieces(b""))
    assert PrintedText("stdout", "'ended'\n") in [event async for event in first]
    assert (await run_code(sandbox, "'x' in dir()")).stdout == "False\n"


async def test_the_time_of_a_call_begins_when_it_starts(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("antiphon.sandbox.client._RUN_MARGIN", 0.0)
    first = asyncio.create_task(run_code(sandbox, "import time\ntime.sleep(1.5)"))
    await sandbox.status()
    assert (await run_code(sandbox, "1 + 1", seconds=1.2)).stdout == "2\n"
    assert (await first).result.outcome == "completed"


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("import os\nos._exit(0)", "exited"),
        ("import os\nos.kill(os.getpid(), 9)\nos.abort()", "exited"),
        ("import os\nos.close(3)", "exited"),
        ("import os\nos.write(3, b'x' * 100)", "protocol"),
        (MANY_PROCESSES, "memory"),
        ("for n in range(99): open(f'/mnt/data/{n}', 'wb').write(b'x' * (1 << 20))\nwhile True: pass", "disk"),
        ("for n in range(9999): open(f'/mnt/data/{n}', 'wb')\nwhile True: pass", "files"),
        ("import os\nos.fork()\nwhile True: pass", "cpu"),
    ],
)  # fmt: skip
async def test_a_container_beyond_a_limit_is_killed(
    sandbox: Sandbox, code: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("antiphon.sandbox.client._CORES", 0.01 if reason == "cpu" else 2)
    record = await run_code(sandbox, code, seconds=30)
    assert (record.result.outcome, record.result.reason) == ("killed", reason)
    assert (await sandbox.status()).kills.get(reason) or reason == "exited"
    assert (await run_code(sandbox, "1 + 1")).stdout == "2\n"


FILL_FILES = "for n in range({}): open(f'/mnt/data/{{n}}', 'wb')\nwhile True: pass"
FILL_DISK = "for n in range({}): open(f'/mnt/data/{{n}}', 'wb').write(b'x' * (1 << 20))\nwhile True: pass"


@pytest.mark.parametrize(("code", "reason"), [(FILL_FILES.format(600), "files"), (FILL_DISK.format(40), "disk")])
async def test_a_container_beyond_its_disk_runs_code_that_deletes_files(
    sandbox: Sandbox, code: str, reason: str
) -> None:
    assert (await run_code(sandbox, code, seconds=30)).result.reason == reason
    delete = """
import os, time
print(len(os.listdir('/mnt/data')))
end = time.monotonic() + 1.5  # longer than the checks are apart
while time.monotonic() < end: pass
for name in os.listdir('/mnt/data'): os.unlink(f'/mnt/data/{name}')
"""
    record = await run_code(sandbox, delete, seconds=60)
    assert (record.result.outcome, int(record.stdout) > 30) == ("completed", True)
    assert (await run_code(sandbox, code, seconds=30)).result.reason == reason


@pytest.mark.parametrize("size", [0, 1 << 20])
async def test_calls_that_exceed_the_disk_again_and_again_lose_the_files(sandbox: Sandbox, size: int) -> None:
    fill = f"import time\nwhile True: open(f'/mnt/data/{{time.time_ns()}}', 'wb').write(bytes({size}))"
    counts = []
    for _ in range(30):
        assert (await run_code(sandbox, fill, seconds=30)).result.outcome == "killed"
        counts.append(int((await run_code(sandbox, "import os; len(os.listdir('/mnt/data'))")).stdout))
        if not counts[-1]:
            break
    assert (counts[-1], all(counts[:-1])) == (0, True)


MAP = """
import ctypes, os, mmap, time
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
"""
MAPPED_FILES = """
for n in range(6):
    file = os.open('x', os.O_CREAT | os.O_RDWR)
    os.write(file, bytes(8 << 20))
    libc.mmap(None, 4096, 1, 1, file, 0)
    os.close(file)
    os.unlink('x')
"""
FILES_IN_MESSAGES = """
import socket
ends = socket.socketpair()
for n in range(10):
    file = os.open('x', os.O_CREAT | os.O_RDWR)
    os.write(file, bytes(4 << 20))
    socket.send_fds(ends[0], [b'x'], [file])
    os.close(file)
    os.unlink('x')
"""
PAGE_TABLES = """
for n in range(20_000):
    at = 0x10000000000 + (n << 30)
    libc.mmap(at, 4096, 1, 0x100022, -1, 0)
    ctypes.c_char.from_address(at).value
"""


@pytest.mark.parametrize(
    ("code", "reason"), [(MAPPED_FILES, "disk"), (FILES_IN_MESSAGES, "disk"), (PAGE_TABLES, "memory")]
)
async def test_what_no_folder_and_no_process_shows_is_limited(sandbox: Sandbox, code: str, reason: str) -> None:
    if (await sandbox.status()).level == "gvisor" and reason == "memory":
        pytest.skip("not applicable: gVisor's own tables are counted with its memory")
    await sandbox.start("small", replace(LIMITS, memory=128 << 20))
    record = await run_code(sandbox, f"{MAP}{code}time.sleep(60)", 40, "small")
    await sandbox.stop("small")
    assert (record.result.outcome, record.result.reason) == ("killed", reason)


@pytest.mark.parametrize(
    "code",
    [
        "import mmap; mmap.mmap(-1, 4096)",
        "import mmap, os; mmap.mmap(os.open('/dev/zero', os.O_RDWR), 4096)",
        MAP + "assert libc.fallocate(os.open('x', 66), 1, ctypes.c_long(0), ctypes.c_long(1 << 30)) == 0",
    ],
)
async def test_memory_and_disk_that_could_be_taken_between_two_checks_are_refused(sandbox: Sandbox, code: str) -> None:
    if (await sandbox.status()).level == "gvisor" and "/dev/zero" in code:
        pytest.skip("not applicable: gVisor's own memory is counted")
    assert (await run_code(sandbox, code)).result.outcome == "raised"


async def test_single_bytes_of_output_come_in_few_pieces(sandbox: Sandbox) -> None:
    code = "import os\nfor n in range(20_000): os.write(1 + n % 2, b'x')"
    events = [event async for event in sandbox.run("c", code, 60)]
    texts = [event.text for event in events if isinstance(event, PrintedText)]
    assert (len("".join(texts)), len(texts) < 2_000) == (20_000, True)


FORGED_FRAMES = """
import gc, json, os, struct
kernel = next(each for each in gc.get_objects() if type(each).__name__.endswith('Kernel'))
def send(size=0, **fields):
    text = json.dumps({**fields, 'nonce': kernel._nonce}).encode()
    kernel._channel.sendall(struct.pack('>II', len(text), size) + text + bytes(size))
"""


@pytest.mark.parametrize(
    "code",
    [
        "while True: send(begun=True)",
        "while True: send(figure=1)",
        "send(x=[[]] * 500_000)",
        "send(5 << 20, figure=1)",
        "send(unknown=1)",
    ],
)
async def test_a_kernel_that_sends_what_none_sends_is_killed_at_once(sandbox: Sandbox, code: str) -> None:
    record = await run_code(sandbox, f"{FORGED_FRAMES}{code}\nwhile True: pass", seconds=40)
    assert (record.result.outcome, record.result.reason) == ("killed", "protocol")


async def test_nothing_of_the_host_is_visible(sandbox: Sandbox, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("secret")
    code = f"""
import os, socket, ctypes
def attempt(action):
    try:
        return action()
    except OSError as error:
        return type(error).__name__
libc = ctypes.CDLL(None, use_errno=True)
[
    attempt(lambda: open({str(secret)!r}).read()),
    attempt(lambda: os.kill({os.getpid()}, 0)),
    attempt(lambda: socket.create_connection(("127.0.0.1", 22), 1)),
    [libc.unshare(0x10000000), libc.ptrace(0, 0, 0, 0), libc.syscall(425, 1, 0), os.getuid() != 0],
    sorted(os.environ),
]
"""
    record = await run_code(sandbox, code)
    values = eval(record.stdout)  # noqa: S307 - a list of texts and numbers
    assert values[0] in ("FileNotFoundError", "PermissionError")
    assert values[1] in ("ProcessLookupError", "PermissionError")
    assert values[2] in ("ConnectionRefusedError", "PermissionError")
    has_other_user = (await sandbox.status()).level != "gvisor"  # there, code is user 0 of gVisor
    assert values[3] == [-1, -1, -1, has_other_user]
    assert "PWD" not in values[4]


async def test_containers_do_not_see_each_other_and_random_numbers_differ(sandbox: Sandbox) -> None:
    await sandbox.start("d", LIMITS)
    await run_code(sandbox, "open('/mnt/data/mine', 'w')")
    code = "import random, os\nprint(random.random())\nos.listdir('/mnt/data')"
    first, second = [await run_code(sandbox, code, container=name) for name in ("c", "d")]
    assert first.stdout.splitlines()[1] == "['mine']"
    assert second.stdout.splitlines()[1] == "[]"
    await sandbox.stop("d")
    assert first.stdout.splitlines()[0] != second.stdout.splitlines()[0]


async def test_a_missing_package_of_the_sandbox_names_the_command_that_installs_it(sandbox: Sandbox) -> None:
    for name, is_named in (("pandas", True), ("sympy", False)):
        raised = await run_code(sandbox, f"raise ModuleNotFoundError('No module named {name}', name='{name}')")
        assert ("antiphon sandbox-packages" in raised.stderr) is is_named


async def test_code_has_a_lower_priority_and_cannot_raise_it(lone_sandbox: LocalSandbox) -> None:
    assert os.getpriority(os.PRIO_PROCESS, find_processes(lone_sandbox.folder)[-1]) == 15
    if (await lone_sandbox.status()).level == "gvisor":  # whose kernel has priorities of its own, and runsc sessions
        return
    code = "import os\ntry: os.setpriority(os.PRIO_PROCESS, 0, 0)\nexcept OSError: print('refused')\nos.nice(0)"
    assert (await run_code(lone_sandbox, code)).stdout == "refused\n15\n"
    if os.geteuid() == 0 and (group := _read_session_group(find_processes(lone_sandbox.folder)[-1])):
        assert group.endswith(" nice 15\n")


async def test_a_stopped_or_unknown_container_is_refused(sandbox: Sandbox) -> None:
    await sandbox.stop("c")
    with pytest.raises(UnknownContainer):
        await run_code(sandbox, "1")
    with pytest.raises(UnknownContainer):
        await sandbox.list_files("c")
    if isinstance(sandbox, LocalSandbox):
        assert os.listdir(sandbox.folder / "containers") == []


async def test_no_process_and_no_file_remains_when_the_last_client_has_gone(lone_sandbox: LocalSandbox) -> None:
    assert len(find_processes(lone_sandbox.folder)) >= 4
    await run_code(lone_sandbox, "import os\nif os.fork() == 0:\n    import time\n    time.sleep(600)")
    await lone_sandbox.close()
    await _await_end(lone_sandbox)
    assert os.listdir(lone_sandbox.folder / "containers") == []


async def test_no_process_remains_when_the_sandbox_process_is_killed_and_it_is_started_again(
    lone_sandbox: LocalSandbox,
) -> None:
    await run_code(lone_sandbox, "import os\nif os.fork() == 0:\n    import time\n    time.sleep(600)")
    os.kill(find_processes(lone_sandbox.folder)[0], signal.SIGKILL)
    await _await_end(lone_sandbox)
    with pytest.raises(SandboxUnavailable):
        await run_code(lone_sandbox, "1")
    async with asyncio.timeout(30):
        while True:
            try:
                await lone_sandbox.start("c", LIMITS)
                break
            except SandboxUnavailable:
                await asyncio.sleep(0.05)
    assert (await run_code(lone_sandbox, "1 + 1")).stdout == "2\n"


async def test_a_killed_zygote_is_replaced(lone_sandbox: LocalSandbox) -> None:
    await run_code(lone_sandbox, "x = 1")
    before = find_processes(lone_sandbox.folder)
    os.kill(before[1], signal.SIGKILL)
    while {*before[1:]} & {*find_processes(lone_sandbox.folder)}:
        await asyncio.to_thread(os.sched_yield)
    record = await run_code(lone_sandbox, "1 + 1")
    assert (record.stdout, record.result.restarted) == ("2\n", True)


@pytest.mark.parametrize("victims", [[2], [1, 2]], ids=["guard", "zygote and guard"])
async def test_no_process_of_a_container_remains_when_its_guard_is_killed(
    lone_sandbox: LocalSandbox, victims: list[int]
) -> None:
    await run_code(lone_sandbox, "import subprocess; subprocess.Popen('sleep 1000 & sleep 1000', shell=True)")
    processes = find_processes(lone_sandbox.folder)
    tree = list_tree(processes[2])
    for number in victims:
        os.kill(processes[number], signal.SIGKILL)
    await asyncio.to_thread(await_end, tree)
    assert (await run_code(lone_sandbox, "1 + 1")).stdout == "2\n"


def await_end(processes: list[int]) -> None:
    while any(Path(f"/proc/{pid}").exists() for pid in processes):
        os.sched_yield()


@pytest.mark.quiet_cores  # code that gets no CPU does not notice its deadline, and is killed
@pytest.mark.parametrize("level", LEVELS[:2])  # gVisor has other processes
async def test_a_server_that_leaves_while_its_container_starts_does_not_confuse_the_next_start(
    level: SandboxLevel,
) -> None:
    async with asyncio.timeout(60), run_sandbox(level) as sandbox:
        try:
            await sandbox.status()
        except SandboxUnavailable as error:
            pytest.skip(f"permission: no sandbox of this level: {error}")
        other, zygote = LocalSandbox(sandbox.settings), find_processes(sandbox.folder)[1]
        await other.status()
        os.kill(zygote, signal.SIGSTOP)
        start = asyncio.create_task(other.start("d", LIMITS))
        await asyncio.sleep(0)
        await other.status()  # the sandbox process has asked the zygote
        await other.close()
        with suppress(SandboxUnavailable):
            await start
        while (await sandbox.status()).containers:
            pass
        os.kill(zygote, signal.SIGCONT)
        await sandbox.start("c", LIMITS)
        assert (await run_code(sandbox, "while True: pass", seconds=0.2)).result.outcome == "timeout"
        while len(find_processes(sandbox.folder)) > 4:  # the kernel of the other container ends
            await asyncio.to_thread(os.sched_yield)


async def test_the_number_of_containers_is_limited(lone_sandbox: LocalSandbox) -> None:
    with pytest.raises(Busy):
        await lone_sandbox.start("d", LIMITS)


async def test_servers_with_the_same_settings_share_one_sandbox(
    sandbox: Sandbox, connect: Callable[[], Sandbox]
) -> None:
    other = connect()
    assert other.name == sandbox.name
    try:
        assert (await other.status()).containers == ("c",)
    finally:
        await other.close()
    assert (await run_code(sandbox, "1 + 1")).stdout == "2\n"


async def test_a_server_that_connects_while_the_last_other_one_disconnects_gets_a_sandbox(
    lone_sandbox: LocalSandbox,
) -> None:
    other = LocalSandbox(lone_sandbox.settings)
    process, lone_sandbox.process = lone_sandbox.process, None  # close() does not wait for it
    assert process is not None
    process.send_signal(signal.SIGSTOP)
    await lone_sandbox.close()
    status = asyncio.create_task(other.status())
    for _ in range(20):  # it connects, but is not accepted
        await asyncio.to_thread(os.sched_yield)
    process.send_signal(signal.SIGCONT)
    try:
        assert (await status).containers == ()
    finally:
        await other.close()
        await asyncio.to_thread(process.wait)


async def test_a_sandbox_that_is_off_or_cannot_be_started_says_why(tmp_path: Path) -> None:
    with pytest.raises(SandboxUnavailable, match="--sandbox none"):
        await LocalSandbox(SandboxSettings(folder=tmp_path, level="none")).status()
    broken = LocalSandbox(SandboxSettings(folder=tmp_path, python="/bin/false"))
    with pytest.raises(SandboxUnavailable, match="has ended"):
        await broken.status()
    with pytest.raises(SandboxUnavailable, match="being restarted"):
        await broken.status()
    broken = LocalSandbox(SandboxSettings(folder=tmp_path, python="/bin/ls"))
    with pytest.raises(SandboxUnavailable, match="There is no sandbox on this host"):
        await broken.status()
    assert broken.process is None  # it was waited for
    os.chmod(tmp_path, 0o777)
    with pytest.raises(SandboxUnavailable, match="others can write"):
        await LocalSandbox(SandboxSettings(folder=tmp_path)).status()


def test_settings_come_from_the_configuration(tmp_path: Path) -> None:
    config = Config.from_settings(sandbox="landlock", sandbox_folder=tmp_path, sandbox_python="/usr/bin/python3")
    settings = make_sandbox_settings(config)
    assert (settings.level, settings.folder, settings.python) == ("landlock", tmp_path, "/usr/bin/python3")


@pytest.mark.parametrize("level", LEVELS)
async def test_figures_come_out_as_images_and_packages_work(level: SandboxLevel) -> None:
    if not PACKAGES_PYTHON.exists():
        pytest.skip("download: `make sandbox-packages` installs numpy, pandas, matplotlib and pillow")
    async with run_sandbox(level, str(PACKAGES_PYTHON)) as sandbox:
        try:
            await sandbox.start("c", LIMITS)
        except SandboxUnavailable as error:
            pytest.skip(f"permission: no sandbox of this level: {error}")
        code = "import matplotlib.pyplot as plt\nplt.plot([1, 2])\nplt.figure()\nplt.plot([2, 1])\nNone"
        record = await run_code(sandbox, code, seconds=60)  # gVisor imports slowly
        assert [read_image_info(figure).media_type for figure in record.figures] == ["image/png"] * 2
        assert (await run_code(sandbox, "plt.plot([1])\nplt.show()\nNone")).stderr == ""
        assert len((await run_code(sandbox, "for _ in range(12): plt.figure()")).figures) == 10
        code = "import pandas as pd, numpy as np\npd.DataFrame({'a': np.arange(4) @ np.ones((4, 2))}).a.sum()"
        assert (await run_code(sandbox, code)).stdout == "np.float64(12.0)\n"


UNDRAWN = """
import sys, types
def draw(buffer, format): 1 / 0
figures = [1]
sys.modules["matplotlib.pyplot"] = types.SimpleNamespace(
    get_fignums=lambda: [*figures], figure=lambda number: types.SimpleNamespace(savefig=draw),
    close=lambda name: figures.clear(), show=None)
"""


async def test_a_figure_that_cannot_be_drawn_does_not_fail_the_next_call(sandbox: Sandbox) -> None:
    assert (await run_code(sandbox, UNDRAWN)).result.outcome == "raised"
    assert (await run_code(sandbox, "1")).result.outcome == "completed"


TREE = """
(setsid sh -c 'while :; do sleep 0.05; done' 2>/dev/null & (sleep 60 | sleep 61) & exec sleep 62) &
echo begun; touch begun; wait; sleep 63
"""


async def test_a_command_runs_in_a_shell_with_its_own_streams_and_exit_code(sandbox: LocalSandbox) -> None:
    await run_code(sandbox, "x = 1")
    command = "echo out; echo err >&2; pwd; printf 12 > /mnt/data/written; cat /mnt/data/written | wc -c; exit 7"
    record = await run_code(sandbox, make_shell_cell(command))
    out = record.stdout.splitlines()
    assert (out[0], out[2].strip(), record.stderr, record.result.exit_code) == ("out", "2", "err\n", 7)
    assert [file.path for file in record.result.changed] == ["written"]
    assert (await run_code(sandbox, make_shell_cell("kill -9 $$"))).result.exit_code == 137
    missing = await run_code(sandbox, make_shell_cell("no-such-program"))
    assert (missing.result.exit_code, missing.result.outcome) == (127, "completed")
    assert "no-such-program" in missing.stderr
    record = await run_code(sandbox, "x")
    assert (record.stdout, record.result.exit_code) == ("1\n", None)


async def list_processes(sandbox: LocalSandbox) -> list[int]:
    """Return the processes as this host sees them, or as gVisor does, which keeps some of its own for later."""
    if (await sandbox.status()).level != "gvisor":
        return sorted(list_tree(find_processes(sandbox.folder)[0]))
    found: list[int] = eval((await run_code(sandbox, "[*map(int, filter(str.isdigit, os.listdir('/proc')))]")).stdout)  # noqa: S307 - a list of numbers
    return sorted(found)


@pytest.mark.quiet_cores
async def test_the_whole_tree_of_a_command_is_killed_at_its_deadline_and_the_kernel_lives(
    lone_sandbox: LocalSandbox,
) -> None:
    await run_code(lone_sandbox, "import os, subprocess\nx = 1\nolder = subprocess.Popen(['sleep', '99'])")
    before = await list_processes(lone_sandbox)
    record = await run_code(lone_sandbox, make_shell_cell(TREE), seconds=4)  # a shell starts slowly on busy cores
    assert (record.stdout, record.result.outcome) == ("begun\n", "timeout")
    assert record.result.seconds < 20
    assert await list_processes(lone_sandbox) == before
    assert (await run_code(lone_sandbox, "x, older.poll()")).stdout == "(1, None)\n"


async def test_a_closed_iterator_kills_the_command(sandbox: LocalSandbox) -> None:
    events = sandbox.run("c", make_shell_cell(TREE), 60)
    assert await anext(events) == PrintedText("stdout", "begun\n")
    await events.aclose()
    assert (await run_code(sandbox, make_shell_cell("echo next"))).stdout == "next\n"


async def test_a_process_in_the_background_does_not_delay_the_end_of_its_command(sandbox: LocalSandbox) -> None:
    record = await run_code(sandbox, make_shell_cell("sleep 50 & echo $! > /mnt/data/pid"))
    assert (record.result.outcome, record.result.exit_code) == ("completed", 0)
    assert record.result.seconds < 20
    assert (await run_code(sandbox, make_shell_cell("kill -0 $(cat pid)"))).result.exit_code == 0
