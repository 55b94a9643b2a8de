"""SIGKILL while clients upload files, whole and in parts, complete such uploads, delete files, and index them in vector
stores (`indexing.py`).

Afterwards the next server is checked: every acknowledged file has its content, no file has a row without content, and a
deleted file does not return. At the end the sweep leaves no content without a row, and none that is in use is gone.
The name of a file is the digest of its content, so that also files whose upload was not acknowledged are checked.
"""

import asyncio
import hashlib
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from itertools import product
from pathlib import Path

from antiphon.service.persistence.store_maintenance import FileSweeper
from antiphon.stores.registry import make_contents, make_store
from drills.harness.client import DISCONNECT_ERRORS, Client, Form
from drills.harness.findings import Figure, Findings
from drills.harness.process import Process, Servers, open_servers
from drills.harness.storage_locations import StorageKind, StorageLocation, open_storage
from drills.state import indexing
from drills.state.file_ledger import FileLedger

CONFIG = {"shutdown_grace": 0.2, "log_level": "warning", "lease_seconds": 1.0}
_CLIENTS = 6
_FILES = 40  # above this number, clients prefer to delete
_MAX_PARTS = 4
_KILL_SECONDS = 0.7  # until a kill at a random moment
_POINT_SECONDS = 5.0  # the process is killed anyway if the point is not reached by then
_METHODS = ("add_file", "delete_file", "create_upload", "add_part", "complete_upload", *indexing.METHODS)
_TTL = 3600.0


def make_points(rounds: int) -> list[str]:
    """Return kill points: some before and after the operations of the store, and for the others "", a random moment."""
    named = [f"store.{method}:{when}:{count}" for method, when, count in product(_METHODS, ("before", "after"), (1, 4))]
    named = random.sample(named, min(len(named), rounds // 2))
    return named + [""] * (rounds - len(named))


async def files(kind: StorageKind | StorageLocation, points: Sequence[str], findings: Findings) -> None:
    with open_storage(kind) as storage, open_servers(storage, CONFIG) as servers:
        drill = FilesDrill(servers, findings)
        process = await servers.start()
        for number, point in enumerate(points, 1):
            process = await drill.round(process, point)
            if number % 25 == 0:
                findings.print_line(f"{number} of {len(points)} kills")
        await process.stop()
        findings.add_violations(await _sweep(storage, findings))
        await drill.verify(await servers.start())
        findings.add_figure(Figure("acknowledged", drill.ledger.acknowledged))
        findings.add_violations(f"a server wrote a traceback:\n{text}" for text in servers.tracebacks)


Operation = Callable[[Client, FileLedger], Awaitable[None]]


async def upload_file(client: Client, ledger: FileLedger) -> None:
    name, content = ledger.make_content()
    form = Form(name="file", filename=name, content=content, fields={"purpose": "user_data"})
    ledger.stored[ledger.accept(await client.send("POST", "/v1/files", form))["id"]] = name


async def upload_parts(client: Client, ledger: FileLedger) -> None:
    name, content = ledger.make_content()
    body = {"bytes": len(content), "filename": name, "mime_type": "text/plain", "purpose": "user_data"}
    upload = ledger.accept(await client.post(body, "/v1/uploads"))["id"]
    size = len(content) // random.randint(1, _MAX_PARTS) + 1
    parts = []
    for start in range(0, len(content), size):
        form = Form(name="data", filename="part", content=content[start : start + size])
        parts.append(ledger.accept(await client.send("POST", f"/v1/uploads/{upload}/parts", form))["id"])
    ledger.completing[upload] = (parts, name)
    await complete_upload(client, ledger, upload)


async def complete_upload(client: Client, ledger: FileLedger, upload: str) -> None:
    parts, name = ledger.completing[upload]
    completed = ledger.accept(await client.post({"part_ids": parts}, f"/v1/uploads/{upload}/complete"))
    ledger.stored[completed["file"]["id"]] = name
    del ledger.completing[upload]


async def delete_file(client: Client, ledger: FileLedger) -> None:
    if unused := ledger.find_unused():
        file_id = random.choice(unused)
        ledger.deleting.add(file_id)
        ledger.accept(await client.send("DELETE", f"/v1/files/{file_id}"))
        ledger.deleting.discard(file_id)
        ledger.deleted.add(file_id)
        del ledger.stored[file_id]


OPERATIONS: dict[Operation, int] = {  # and how often each of them is done
    upload_file: 4,
    upload_parts: 4,
    delete_file: 4,
    indexing.attach_file: 4,
    indexing.attach_batch: 2,
    indexing.detach_file: 4,
    indexing.search_file: 4,
    indexing.create_store: 2,
    indexing.delete_store: 1,
}


class FilesDrill:
    def __init__(self, servers: Servers, findings: Findings) -> None:
        self._servers = servers
        self._findings = findings
        self.ledger = FileLedger()

    async def round(self, process: Process, point: str) -> Process:
        """Kill the server during its work, and verify its successor, which is returned."""
        if point:
            process.arm(point)
        async with asyncio.TaskGroup() as clients:
            for _ in range(_CLIENTS):
                clients.create_task(self._work(process))
            if not await process.wait_for_exit(_POINT_SECONDS if point else random.uniform(0.0, _KILL_SECONDS)):
                process.kill()
        self._servers.discard(process)
        self._findings.add_trials()
        after = await self._servers.start()
        await self.verify(after)
        return after

    async def _work(self, process: Process) -> None:
        with suppress(*DISCONNECT_ERRORS):
            while process.is_running:
                weights = OPERATIONS | {delete_file: 8 if len(self.ledger.stored) > _FILES else 4}
                [operation] = random.choices([*weights], [*weights.values()])
                await operation(process.client, self.ledger)

    async def verify(self, process: Process) -> None:
        ledger, client = self.ledger, process.client
        for upload in [*ledger.completing]:  # repeating it returns the same file
            with suppress(EOFError):
                await complete_upload(client, ledger, upload)
        listed = {file["id"]: file["filename"] for file in (await client.get("/v1/files")).json()["data"]}
        for file_id in ledger.stored.keys() - ledger.deleting - listed.keys():
            self._findings.add_violation(f"{file_id}, which was acknowledged, is lost")
        for file_id in ledger.deleted & listed.keys():
            self._findings.add_violation(f"{file_id}, which was deleted, has returned")
        for file_id, digest in listed.items():
            await self._verify_content(client, file_id, ledger.stored.get(file_id, digest))
        ledger.deleted |= ledger.deleting - listed.keys()
        ledger.deleting.clear()
        ledger.stored = listed
        self._findings.add_violations(await indexing.verify_stores(client, ledger))
        self._findings.add_violations(ledger.problems)
        ledger.problems.clear()

    async def _verify_content(self, client: Client, file_id: str, digest: str) -> None:
        answer = await client.get(f"/v1/files/{file_id}/content")
        if answer.status != 200:
            self._findings.add_violation(f"{file_id} has a row, but no content: {answer.status} {answer.body[:200]!r}")
        elif hashlib.sha256(answer.body).hexdigest() != digest:
            self._findings.add_violation(f"{file_id} has other content than was uploaded")


async def _sweep(storage: StorageLocation, findings: Findings) -> list[str]:
    """Sweep as a server would an hour later. Returns what remains without an owner."""
    store = make_store(storage.store, _TTL)
    await store.open()
    try:
        contents, now = make_contents(None, storage.store, store), time.time() + 1.0
        before = [key async for page in contents.list_keys(now) for key in page]
        findings.add_figure(Figure("swept", len(await store.find_unused(*before))))
        sweeper = FileSweeper(store, contents)
        await sweeper.delete_unused(now)
        await sweeper.expire()
        remaining = [key async for page in contents.list_keys(now) for key in page]
        unused = [*await store.find_unused(*remaining), *(_list_folder(storage) - {*remaining})]
        orphans = await indexing.find_orphans(store)
        return [*(f"{key} is content without a row, after the sweep" for key in unused), *orphans]
    finally:
        await store.close()


def _list_folder(storage: StorageLocation) -> set[str]:
    """Return the names of all files in the folder of contents, if there is one."""
    return {path.name for path in Path(f"{storage.store}.files").rglob("*") if path.is_file()}
