"""The sandbox process: holds the zygote and the containers of this host, and serves them on a unix socket.

It ends, with all containers, when its last client has disconnected, so that nothing remains of a server that is killed.

A request is a frame with `call`, a number, `op` and the arguments of the operation. Its answers have the same number:
any number of frames without `end`, and one with `end`, or with `error` and `message`.
"""

import asyncio
import fcntl
import json
import os
import secrets
import signal
import socket
import struct
import sys
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from itertools import count
from typing import Any

from antiphon.sandbox.worker import frames, gvisor, landlock
from antiphon.sandbox.worker.confinement import Confinement
from antiphon.sandbox.worker.container import IDLE_SECONDS, Container
from antiphon.sandbox.worker.files import list_files, remove_tree
from antiphon.sandbox.worker.forking import ALL, StartFailed, ZygoteClient
from antiphon.sandbox.worker.paths import FileRefused

LEVELS = ("namespaces", "landlock")
MAX_PIECE = 1024 * 1024
_MAX_CONNECTIONS = 256
_MAX_CALLS = 4096  # at a time, on one connection: two for each connection of code to a proxy
_FIRST_CLIENT_SECONDS = 30.0
_WATCH_SECONDS = 0.1
_FILES_EVERY, _IDLE_EVERY = 3, round(IDLE_SECONDS / _WATCH_SECONDS)  # rounds of the watchdog
_FIRST_UID = 1_900_000_000  # above the ranges of systemd and of most containers
_UIDS = 60_000
_TRIAL = b"import colorsys, wave, subprocess; subprocess.run(['/bin/sh', '-c', ':'], check=True)"
_TRIAL_SECONDS = 20.0
_TRUNCATE_VERSION = 3

Answer = dict[str, Any]


class RequestRefused(Exception):
    """`code` is part of the protocol."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class ContainerHost:
    """All containers, at one level."""

    def __init__(self, folder: str, max_containers: int) -> None:
        self._folder = folder
        self._max_containers = max_containers
        self._containers: dict[str, Container] = {}
        self._count = 0
        self._first_uid = _find_first_uid()
        self._zygote = ZygoteClient(folder, self._note_end)
        self._checks: dict[Callable[[], Coroutine[Any, Any, None]], asyncio.Task[None]] = {}
        self.level = "none"
        self.refused: dict[str, str] = {}  # why stronger levels are not used
        self.kills: dict[str, int] = {}

    async def choose_level(self, wanted: str) -> None:
        """Use the strongest level at which a trial container runs; only the wanted one unless that is auto."""
        for level in LEVELS if wanted == "auto" else (wanted,):
            self.level = level
            try:
                await self._try_level()
                return
            except (StartFailed, OSError) as error:
                self.refused[level] = str(error)
        self.level = "none"
        raise StartFailed("; ".join(f"{level}: {reason}" for level, reason in self.refused.items()))

    async def _try_level(self) -> None:
        if self.level == "gvisor" and not gvisor.find_runsc():
            raise StartFailed("gVisor's runsc is not installed in a folder of the system for programs")
        if self.level != "gvisor" and not landlock.find_version():
            raise StartFailed("this kernel has no Landlock (Linux 5.13 and newer, with `landlock` in its list of LSMs)")
        if self.level == "landlock" and self._first_uid is None and landlock.find_version() < _TRUNCATE_VERSION:
            raise StartFailed("without root it needs Landlock 3 (Linux 6.2), as files of the server could be truncated")
        errors: list[bytes] = []
        try:
            await self.start({"id": "trial", "memory": 1 << 30, "disk": 1 << 20, "files": 100, "processes": 16}, b"")
        except StartFailed as error:
            raise StartFailed(f"{error}{self._explain_permissions() if self.level == 'gvisor' else ''}") from None
        try:
            container = self._containers["trial"]
            result = await container.run(
                _TRIAL, _TRIAL_SECONDS, _TRIAL_SECONDS, lambda header, data: errors.append(data)
            )
        finally:
            await self.stop({"id": "trial"}, b"")
        if result["outcome"] != "completed":
            last = b"".join(errors).decode(errors="replace").strip().rpartition("\n")[2]
            raise StartFailed(f"a trial failed: {last or result['reason']}{self._explain_permissions()}")

    def _explain_permissions(self) -> str:
        if self._first_uid is None or _is_reachable(sys.base_prefix):
            return ""
        return f" (other users cannot read {sys.executable}: choose another interpreter)"

    async def start(self, request: Answer, payload: bytes) -> Answer:
        name = request["id"]
        if name in self._containers:
            raise RequestRefused("container_exists", "there is a container with this id already")
        if len(self._containers) >= self._max_containers:
            raise RequestRefused("too_many_containers", f"this host runs {self._max_containers} containers at most")
        container = self._make(request)
        self._containers[name] = container
        try:
            await container.start()
        except (StartFailed, OSError, asyncio.CancelledError):
            await container.stop()
            del self._containers[name]
            raise
        return {}

    def _make(self, request: Answer) -> Container:
        """Return a container with a number: unlike its id, later containers may find it in the zygote's memory."""
        self._count += 1
        folder = f"{self._folder}/containers/{self._count}"
        used = {one.spec.uid for one in self._containers.values()}
        uid = None
        if self._first_uid is not None:
            # at random: RLIMIT_NPROC counts the processes of a user in all sandboxes of the host
            free = (self._first_uid + secrets.randbelow(_UIDS) for _ in count())
            uid = next(number for number in free if number not in used)
        spec = Confinement(
            namespaces=self.level != "landlock", runsc=gvisor.find_runsc() if self.level == "gvisor" else "",
            root=f"{folder}/root", data=f"{folder}/data", temporary=f"{folder}/tmp", skills=f"{folder}/skills",
            uid=uid, memory=int(request["memory"]), disk=int(request["disk"]),
            processes=int(request["processes"]), network=self._check_network(request),
        )  # fmt: skip
        return Container(folder, spec, int(request["files"]), self._zygote)

    def _check_network(self, request: Answer) -> bool:
        wanted = request.get("network") is True
        if wanted and self.level != "namespaces":
            raise RequestRefused("no_network", f"containers have no network at the level {self.level}")
        return wanted

    def find(self, request: Answer) -> Container:
        container = self._containers.get(request["id"])
        if container is None or container.is_stopped:
            raise RequestRefused("unknown_container", "there is no container with this id")
        return container

    async def stop(self, request: Answer, payload: bytes) -> Answer:
        await self.find(request).stop()
        del self._containers[request["id"]]  # not before: the end of its processes is reported to those that are here
        return {}

    async def put(self, request: Answer, payload: bytes) -> Answer:
        container, offset = self.find(request), int(request["offset"])
        is_skill = request.get("folder") == "skills"
        if len(payload) > (container.skills_room if is_skill else await asyncio.to_thread(container.free_bytes)):
            raise RequestRefused("container_full", "the container's disk is full")
        if is_skill:
            container.skills_room -= len(payload)
            await asyncio.to_thread(container.skills.write, request["path"], offset, payload)
        else:
            await container.write(request["path"], offset, payload)
        return {}

    async def get(self, request: Answer, payload: bytes) -> tuple[Answer, bytes]:
        data, size = await asyncio.to_thread(
            self.find(request).data.read, request["path"], int(request["offset"]), MAX_PIECE
        )
        return {"size": size}, data

    async def list(self, request: Answer, payload: bytes) -> Answer:
        container = self.find(request)
        folder = container.skills if request.get("folder") == "skills" else container.data
        survey = await asyncio.to_thread(folder.survey, 100_000)
        files, unlisted = list_files(survey.files, survey.files)
        return {"files": files, "unlisted": unlisted}

    async def remove(self, request: Answer, payload: bytes) -> Answer:
        await asyncio.to_thread(self.find(request).data.remove, request["path"])
        return {}

    async def receive(self, request: Answer, payload: bytes) -> tuple[Answer, bytes]:
        return {}, await self.find(request).relay.receive(int(request["connection"]))

    async def send(self, request: Answer, payload: bytes) -> Answer:
        await self.find(request).relay.send(int(request["connection"]), payload)
        return {}

    async def end(self, request: Answer, payload: bytes) -> Answer:
        self.find(request).relay.end(int(request["connection"]))
        return {}

    async def stat(self, request: Answer, payload: bytes) -> Answer:
        return {
            "level": self.level, "refused": self.refused, "packages": self._zygote.packages,
            "python": sys.version.split()[0], "landlock": landlock.find_version(), "kills": self.kills,
            "own_users": self._first_uid is not None, "containers": sorted(self._containers),
        }  # fmt: skip

    async def watch(self) -> None:
        """Check the limits of all containers; of idle ones less often, and if they have run since."""
        for turn in count(1):
            await asyncio.sleep(_WATCH_SECONDS)
            for container in self._containers.values():
                if container.is_running or (turn % _IDLE_EVERY == 0 and container.has_run()):
                    self._check(container.check_processes)
                    if turn % _FILES_EVERY == 0 or not container.is_running:
                        self._check(container.check_files)

    def _check(self, check: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Begin a check, unless the last one has not ended: one container does not delay the checks of others."""
        if check not in self._checks:
            self._checks[check] = task = asyncio.get_running_loop().create_task(check())
            task.add_done_callback(lambda _: self._checks.pop(check, None))

    def _note_end(self, guard: int, code: int) -> None:
        for container in self._containers.values():
            if container.kernel is not None and guard in (ALL, container.kernel.guard):
                container.end(code)
                if reason := container.kernel.reason:
                    self.kills[reason] = self.kills.get(reason, 0) + 1

    def close(self) -> None:
        """Kill all processes, and delete all files."""
        self._zygote.close()
        _empty(f"{self._folder}/containers")


def _is_reachable(path: str) -> bool:
    """Return whether other users may enter all folders above a path."""
    parts = os.path.realpath(path).split("/")
    return all(os.stat("/".join(parts[:count]) or "/").st_mode & 1 for count in range(1, len(parts) + 1))


def _find_first_uid() -> int | None:
    """Return the first of the users for containers; None if this process cannot change its user."""
    if os.geteuid() != 0:
        return None
    with open("/proc/self/uid_map") as file:
        ranges = [(int(line.split()[0]), int(line.split()[2])) for line in file]
    if any(start <= _FIRST_UID and start + count >= _FIRST_UID + _UIDS for start, count in ranges):
        return _FIRST_UID
    start, count = max(ranges, key=lambda one: one[1])  # root in a user namespace: the last ones of it
    return start + count - _UIDS if count > _UIDS + 1000 else None


def _empty(folder: str) -> None:
    """Delete all containers' files, and keep the folder."""
    for name in os.listdir(folder):
        remove_tree(f"{folder}/{name}")


class Connection:
    """One client."""

    def __init__(self, sandbox: ContainerHost, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._sandbox = sandbox
        self._reader = reader
        self._writer = writer
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._operations: dict[str, Callable[[Answer, bytes], Awaitable[Any]]] = {
            "start": sandbox.start, "stop": sandbox.stop, "interrupt": self._interrupt, "put": sandbox.put,
            "get": sandbox.get, "list": sandbox.list, "remove": sandbox.remove, "stat": sandbox.stat,
            "receive": sandbox.receive, "send": sandbox.send, "end": sandbox.end,
        }  # fmt: skip

    async def serve(self) -> None:
        """Answer requests until the client disconnects; then its running calls are killed."""
        with suppress(frames.InvalidFrame, KeyError, TypeError):
            while (frame := await frames.read(self._reader)) is not None:
                number = int(frame[0]["call"])
                if len(self._tasks) >= _MAX_CALLS or number in self._tasks:
                    break
                task = asyncio.get_running_loop().create_task(self._answer(number, *frame))
                self._tasks[number] = task
                task.add_done_callback(lambda _, number=number: self._tasks.pop(number, None))  # type: ignore[misc]  # - the default binds it
        for task in [*self._tasks.values()]:
            task.cancel()
        if self._tasks:
            await asyncio.wait([*self._tasks.values()])
        self._writer.close()

    async def _interrupt(self, request: Answer, payload: bytes) -> Answer:
        """Interrupt a call of this client by its number, or without one the call that runs."""
        container, task = self._sandbox.find(request), self._tasks.get(request.get("run", 0))
        if task is not None or "run" not in request:
            await container.interrupt(task)
        return {}

    async def _answer(self, number: int, request: Answer, payload: bytes) -> None:
        def emit(header: frames.Header, data: bytes) -> None:
            self._writer.write(frames.pack({**header, "call": number}, data))

        try:
            if request.get("op") == "run":
                seconds, cpu = float(request["seconds"]), float(request["cpu_seconds"])
                result = await self._sandbox.find(request).run(payload, seconds, cpu, emit)
            else:
                result = await self._operations[request["op"]](request, payload)
        except (RequestRefused, FileRefused) as error:
            emit({"error": error.code, "message": str(error)}, b"")
        except (StartFailed, OSError) as error:
            emit({"error": "start_failed", "message": str(error)}, b"")
        except (KeyError, ValueError, TypeError) as error:
            emit({"error": "invalid_request", "message": f"{type(error).__name__}: {error}"}, b"")
        else:
            header, data = result if isinstance(result, tuple) else (result, b"")
            emit({**header, "end": True}, data)


async def serve(options: Answer) -> None:
    """Choose the level, then serve until the last client has disconnected."""
    folder = options["folder"]
    _empty(f"{folder}/containers")
    sandbox = ContainerHost(folder, options["max_containers"])
    stopping = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopping.set)
    try:
        await sandbox.choose_level(options["level"])
        await _accept_clients(sandbox, folder, stopping)
    finally:
        sandbox.close()


async def _accept_clients(sandbox: ContainerHost, folder: str, stopping: asyncio.Event) -> None:
    clients: set[Connection] = set()
    loop = asyncio.get_running_loop()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if stopping.is_set() or len(clients) >= _MAX_CONNECTIONS or not _is_own_user(writer):
            writer.close()
            return
        connection = Connection(sandbox, reader, writer)
        clients.add(connection)
        try:
            await connection.serve()
        finally:
            clients.discard(connection)
            if not clients:
                stopping.set()

    path = f"{folder}/socket"
    with suppress(FileNotFoundError):
        os.unlink(path)
    os.umask(0o177)
    server = await asyncio.start_unix_server(accept, path)
    os.umask(0o077)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # tells the server that started this process that it is ready

    def give_up() -> None:
        if not clients:
            stopping.set()

    loop.call_later(_FIRST_CLIENT_SECONDS, give_up)
    watchdog = loop.create_task(sandbox.watch())
    async with server:
        await stopping.wait()
    watchdog.cancel()
    os.unlink(path)


def _is_own_user(writer: asyncio.StreamWriter) -> bool:
    credentials = writer.get_extra_info("socket").getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    return struct.unpack("iII", credentials)[1] in (0, os.geteuid())


def main(role: str, *arguments: str) -> int:
    """Run the sandbox process or its zygote."""
    if role == "zygote":
        from antiphon.sandbox.worker import zygote

        zygote.main(int(arguments[0]), arguments[1])
        return 0
    options = json.loads(arguments[0])
    os.umask(0o077)
    for folder in (options["folder"], f"{options['folder']}/containers"):
        os.makedirs(folder, exist_ok=True)
        os.chmod(folder, 0o711 if os.geteuid() == 0 else 0o700)  # containers with users of their own enter it
    lock = os.open(f"{options['folder']}/lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return 0  # another one serves this folder
    try:
        asyncio.run(serve(options))
    except (StartFailed, OSError) as error:
        sys.stderr.write(str(error))
        return 1
    return 0
