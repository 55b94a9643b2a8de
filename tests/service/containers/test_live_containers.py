"""What happens to containers whose sandbox dies, and to those that belong to other hosts.

Covers `service/containers/live_containers.py` and `service/containers/sweeper.py`.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from msgspec.structs import replace

from antiphon.egress import EgressClient
from antiphon.errors import (
    BodyTooLarge,
    Busy,
    ContainerExpired,
    SandboxUnavailable,
    StorageLimitReached,
    UnknownContainer,
)
from antiphon.protocol.types.containers import ContainerExpiry, CreateContainer
from antiphon.sandbox.local import LocalSandbox
from antiphon.service.containers.live_containers import LiveContainers
from antiphon.service.containers.sweeper import ContainerSweeper
from antiphon.service.files import Files
from antiphon.stores.sql.store import Store
from antiphon.testing.rows.container_rows import make_container
from antiphon.testing.rows.response_rows import TENANT, Clock
from tests.support.sandboxes import run_sandbox

pytestmark = pytest.mark.anyio
REQUEST = CreateContainer(name="box")


async def iterate(*pieces: bytes) -> AsyncIterator[bytes]:
    for piece in pieces:
        yield piece


@asynccontextmanager
async def restart(live: LiveContainers, files: Files) -> AsyncIterator[LiveContainers]:
    """Kill the sandbox process. Yields the containers as the next server of this host sees them."""
    assert isinstance(live.sandbox, LocalSandbox)
    assert live.sandbox.process is not None
    live.sandbox.process.kill()
    await asyncio.to_thread(live.sandbox.process.wait)
    sandbox = LocalSandbox(live.sandbox.settings)
    try:
        yield LiveContainers(live.store, files, sandbox, live.settings, EgressClient())
    finally:
        await sandbox.close()


@pytest.mark.shows("E6.4")
async def test_a_container_whose_sandbox_has_died_has_expired(live: LiveContainers, files: Files) -> None:
    row = await live.create(TENANT, REQUEST)
    assert (await live.ensure(TENANT, row.id, "container")).id == row.id
    async with restart(live, files) as later:
        with pytest.raises(ContainerExpired, match="lost with its sandbox, and so were its files") as refused:
            await later.ensure(TENANT, row.id, "container")
        assert (refused.value.status, refused.value.param) == (404, "container")
        assert (await later.find(TENANT, row.id)).state == "ended"
        with pytest.raises(ContainerExpired):
            await later.use(TENANT, row.id)
        assert later.lost == 1


@pytest.mark.shows("E6.4")
async def test_the_sweep_notices_lost_containers(live: LiveContainers, files: Files) -> None:
    row, sweeper = await live.create(TENANT, REQUEST), ContainerSweeper(live)
    await sweeper.sweep()
    assert (sweeper.running, (await live.find(TENANT, row.id)).state) == (1, "running")
    async with restart(live, files) as later:
        sweeper = ContainerSweeper(later)
        await sweeper.sweep()
        assert (await later.find(TENANT, row.id)).state == "ended"
        await sweeper.sweep()
        assert (sweeper.running, sweeper.kills["lost"]) == (0, 1)


@pytest.mark.shows("E6.4")
async def test_the_sweep_stops_containers_that_expired_or_were_deleted_elsewhere(
    live: LiveContainers, store: Store, clock: Clock, sandbox: LocalSandbox
) -> None:
    old, deleted, alive = [await live.create(TENANT, replace_minutes(minutes)) for minutes in (1, 20, 20)]
    await store.delete_container(TENANT, deleted.id)  # by a server of another host
    clock.now += 600
    await ContainerSweeper(live).sweep()
    assert (await sandbox.status()).containers == (alive.id,)
    assert (await live.find(TENANT, old.id)).state == "ended"
    assert await store.list_due_containers(sandbox.name) == []


def replace_minutes(minutes: int) -> CreateContainer:
    return replace(REQUEST, expires_after=ContainerExpiry(anchor="last_active_at", minutes=minutes))


async def test_a_container_of_another_host_is_known_but_not_run_here(
    live: LiveContainers, store: Store, clock: Clock, sandbox: LocalSandbox
) -> None:
    foreign = make_container(clock)
    await store.add_container(TENANT, foreign, 10)
    await store.note_container_start(TENANT, foreign.id)
    assert (await live.find(TENANT, foreign.id)).state == "running"
    with pytest.raises(SandboxUnavailable, match="another host"):
        await live.use(TENANT, foreign.id)
    await ContainerSweeper(live).sweep()
    assert (await live.find(TENANT, foreign.id)).state == "running"
    await live.delete(TENANT, foreign.id)
    with pytest.raises(UnknownContainer):
        await live.find(TENANT, foreign.id)
    assert await store.list_due_containers(foreign.sandbox) == [(TENANT, foreign.id)]


async def test_a_container_that_cannot_be_started_leaves_nothing(
    live: LiveContainers, store: Store, files: Files
) -> None:
    async with run_sandbox("auto", max_containers=1) as small:
        crowded = LiveContainers(store, files, small, live.settings, EgressClient())
        await crowded.create(TENANT, REQUEST)
        with pytest.raises(Busy, match="1 containers at most"):
            await crowded.create(TENANT, REQUEST)
        assert crowded.starts == {"started": 1, "failed": 1}
        assert len(await store.list_running_containers(small.name)) == 1
        assert await store.list_due_containers(small.name) == []


async def test_a_file_that_is_too_large_is_removed_again(live: LiveContainers, sandbox: LocalSandbox) -> None:
    row = await live.create(TENANT, REQUEST)
    with pytest.raises(BodyTooLarge):
        await live.write(TENANT, row, "a.txt", iterate(b"12345", b"6"), 5)
    assert await sandbox.list_files(row.id) == ()
    assert await live.write(TENANT, row, "a.txt", iterate(b"12345"), 5) == 5


async def test_the_limit_of_a_tenant_holds_before_a_container_is_started(
    store: Store, files: Files, sandbox: LocalSandbox, live: LiveContainers
) -> None:
    full = LiveContainers(store, files, sandbox, replace(live.settings, containers_max_entries=1), EgressClient())
    await full.create(TENANT, REQUEST)
    with pytest.raises(StorageLimitReached):
        await full.create(TENANT, REQUEST)
    assert full.starts == {"started": 1}
