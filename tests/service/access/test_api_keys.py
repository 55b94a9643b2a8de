"""API keys: configured keys, lookups in the store with caching and coalescing, refreshes, and invalid attributes.

Covers `service/access/api_keys.py`.
"""

import asyncio
import re
from collections.abc import AsyncIterator
from typing import Any

import pytest

from antiphon.config.key_settings import ConfiguredKey
from antiphon.errors import Busy, StartupError, Unavailable
from antiphon.service.access import api_keys as module
from antiphon.service.access.api_keys import ApiKeys, Principal, issue
from antiphon.stores.base import ApiKey
from antiphon.stores.registry import make_store
from antiphon.stores.sql.store import Store
from antiphon.testing.rows.response_rows import TTL, Clock

pytestmark = pytest.mark.anyio

ALL_SCOPES = frozenset({"inference", "admin"})


class CountingKeyStore:
    """A key store that records its lookups, and can be made to wait or to fail."""

    name = "sqlite"

    def __init__(self, store: Store) -> None:
        self.store = store
        self.lookups: list[list[str]] = []
        self.may_look_up, self.may_check = asyncio.Event(), asyncio.Event()
        self.may_look_up.set()
        self.may_check.set()
        self.looked_up = asyncio.Event()
        self.fails = False

    async def find_api_keys(self, ids: list[str]) -> list[ApiKey]:
        self.lookups.append(ids)
        await self.may_look_up.wait()
        if self.fails:
            raise Unavailable("The store is down.", retry_after=1.0)
        found = await self.store.find_api_keys(ids)
        self.looked_up.set()
        return found

    async def shared(self, name: str, new: bytes) -> bytes:
        return await self.store.shared(name, new)

    async def has_api_keys(self) -> bool:
        if self.fails:
            raise Unavailable("The store is down.", retry_after=1.0)
        found = await self.store.has_api_keys()
        await self.may_check.wait()
        return found


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def store(clock: Clock) -> AsyncIterator[CountingKeyStore]:
    inner = make_store("memory", TTL, clock)
    await inner.open()
    yield CountingKeyStore(inner)
    await inner.close()


async def create_key(store: CountingKeyStore, clock: Clock, **fields: Any) -> tuple[ApiKey, bytes]:
    arguments: dict[str, Any] = {
        "tenant": "acme",
        "name": "",
        "scopes": (),
        "created": clock(),
        "expires": None,
        **fields,
    }
    row, key = issue(**arguments)
    await store.store.add_api_key(row)
    return row, key.encode()


async def test_a_configured_key_resolves_from_memory_with_the_scopes_of_its_tenant() -> None:
    keys = ApiKeys([ConfiguredKey("flag 1", "secret"), ConfiguredKey("line 2", "other", "acme")])
    assert keys.required
    one, other = keys.find(b"secret"), keys.find(b"other")
    assert one is not None
    assert other is not None
    assert one == Principal(tenant="default", key=one.key, scopes=ALL_SCOPES)
    assert other == Principal(tenant="acme", key=other.key, scopes=frozenset({"inference"}))
    assert re.fullmatch("given_[0-9a-f]{12}", one.key)
    assert one.key != other.key
    for wrong in (b"", b"secre", b"secret ", b"secrets", b"\xff", b"x" * 100_000):
        assert keys.find(wrong) is None
        assert not keys.can_look_up(wrong)


def get_key_name(keys: ApiKeys, key: bytes) -> str:
    found = keys.find(key)
    assert found is not None
    return found.key


async def test_a_configured_key_has_one_name_at_any_position_and_on_all_servers_of_a_store(
    store: CountingKeyStore,
) -> None:
    keys = ApiKeys([ConfiguredKey("line 1", "secret")], store)
    await keys.open()
    name = get_key_name(keys, b"secret")
    keys.replace_configured([ConfiguredKey("line 1", "new"), ConfiguredKey("line 2", "secret")])
    assert get_key_name(keys, b"secret") == name
    assert get_key_name(keys, b"new") != name
    other = ApiKeys([ConfiguredKey("flag 1", "secret")], store)
    await other.open()
    assert get_key_name(other, b"secret") == name
    unrelated = ApiKeys([ConfiguredKey("line 1", "secret")])
    await unrelated.open()
    assert get_key_name(unrelated, b"secret") != name, "the name of a key depends on a secret of the store"


async def test_concurrent_lookups_of_one_key_query_the_store_once(store: CountingKeyStore, clock: Clock) -> None:
    row, key = await create_key(store, clock)
    keys = ApiKeys(store=store, clock=clock)
    assert keys.find(key) is None
    assert keys.can_look_up(key)
    store.may_look_up.clear()
    async with asyncio.timeout(30), asyncio.TaskGroup() as tasks:
        pending = [tasks.create_task(keys.look_up(key)) for _ in range(20)]
        await asyncio.sleep(0)
        store.may_look_up.set()
    expected = Principal(tenant="acme", key=row.id, scopes=frozenset({"inference"}))
    assert [task.result() for task in pending] == [expected] * 20
    assert keys.find(key) == expected
    assert store.lookups == [[row.id]]


async def test_a_wrong_secret_with_a_valid_id_is_rejected_after_one_lookup(
    store: CountingKeyStore, clock: Clock
) -> None:
    _, key = await create_key(store, clock)
    forged = key[:-1] + (b"0" if key[-1:] != b"0" else b"1")
    keys = ApiKeys(store=store, clock=clock)
    for _ in range(5):
        assert await keys.look_up(forged) is None
    assert len(store.lookups) == 1
    assert (await keys.look_up(key)) is not None


@pytest.mark.parametrize(
    "key", [b"ak_", b"ak_x_y", b"sk-123", b"ak_" + b"0" * 32, b"AK_" + b"0" * 32 + b"_" + b"0" * 48, b"\xff" * 84]
)
async def test_a_malformed_key_is_never_looked_up(store: CountingKeyStore, key: bytes) -> None:
    assert not ApiKeys(store=store).can_look_up(key)


async def test_a_revoked_key_is_rejected_after_the_next_refresh(store: CountingKeyStore, clock: Clock) -> None:
    row, key = await create_key(store, clock)
    _, other = await create_key(store, clock, tenant="other")
    keys = ApiKeys(store=store, clock=clock)
    for one in (key, other):
        assert await keys.look_up(one)
    await store.store.revoke_api_key(row.id)
    await keys.refresh()
    assert keys.find(key) is None
    assert await keys.look_up(key) is None
    assert keys.find(other) is not None


async def test_a_key_is_rejected_from_the_moment_it_expires(store: CountingKeyStore, clock: Clock) -> None:
    _, key = await create_key(store, clock, expires=clock() + 10)
    keys = ApiKeys(store=store, clock=clock)
    assert await keys.look_up(key)
    clock.now += 9.9
    assert keys.find(key)
    clock.now += 0.1
    assert keys.find(key) is None
    assert await keys.look_up(key) is None


async def test_keys_stay_required_after_the_last_key_is_removed(store: CountingKeyStore, clock: Clock) -> None:
    keys = ApiKeys(store=store, clock=clock)
    await keys.open()
    assert not keys.required
    row, _ = await create_key(store, clock)
    await store.store.revoke_api_key(row.id)
    await keys.refresh()
    assert keys.required
    later = ApiKeys([ConfiguredKey("flag 1", "k")])
    later.replace_configured([])
    assert later.required
    assert later.find(b"k") is None


async def test_the_first_key_is_valid_before_the_next_refresh(store: CountingKeyStore, clock: Clock) -> None:
    keys = ApiKeys(store=store, clock=clock)
    await keys.open()
    _, key = await create_key(store, clock)
    found = await keys.look_up(key)
    assert found is not None
    assert found.tenant == "acme"
    assert keys.required


async def test_a_stale_refresh_does_not_make_keys_optional_again(store: CountingKeyStore, clock: Clock) -> None:
    keys = ApiKeys(store=store, clock=clock)
    store.may_check.clear()
    async with asyncio.timeout(30), asyncio.TaskGroup() as tasks:
        tasks.create_task(keys.refresh())
        await asyncio.sleep(0)
        _, key = await create_key(store, clock)
        assert await keys.look_up(key)
        store.may_check.set()
    assert keys.required


async def test_cached_keys_stay_valid_for_a_limited_time_while_the_store_is_down(
    store: CountingKeyStore, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, key = await create_key(store, clock)
    now = [1000.0]
    monkeypatch.setattr(module, "monotonic", lambda: now[0])
    keys = ApiKeys(store=store, clock=clock)
    assert await keys.look_up(key)
    await keys.refresh()
    store.fails = True
    for seconds, expected in ((1.0, True), (module.TRUST_SECONDS - 1, True), (1.0, False)):
        now[0] += seconds
        await keys._try_refresh()
        assert (keys.find(key) is not None) is expected
    with pytest.raises(Unavailable):
        await keys.look_up(key)
    store.fails = False
    assert await keys.look_up(key)


async def test_pending_lookups_are_bounded(store: CountingKeyStore, clock: Clock) -> None:
    keys = ApiKeys(store=store, clock=clock)
    unknown = [issue("acme", "", (), clock(), None)[1].encode() for _ in range(100)]
    store.may_look_up.clear()
    async with asyncio.timeout(30):
        pending = [asyncio.ensure_future(keys.look_up(key)) for key in unknown]
        while len(done := [task for task in pending if task.done()]) < 36:  # noqa: ASYNC110 - no event signals this
            await asyncio.sleep(0)
        assert len(done) == 36
        assert {type(task.exception()) for task in done} == {Busy}
        assert len(store.lookups) <= 8
        store.may_look_up.set()
        assert [await task for task in pending if task not in done] == [None] * 64
    assert await keys.look_up(unknown[0]) is None


async def test_a_key_that_is_created_after_a_failed_lookup_becomes_valid(
    store: CountingKeyStore, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr(module, "monotonic", lambda: now[0])
    keys = ApiKeys(store=store, clock=clock)
    row, text = issue("acme", "", (), clock(), None)
    assert await keys.look_up(text.encode()) is None
    await store.store.add_api_key(row)
    assert await keys.look_up(text.encode()) is None  # the failure is remembered for a moment
    assert len(store.lookups) == 1
    now[0] += module._UNKNOWN_SECONDS
    principal = await keys.look_up(text.encode())
    assert principal is not None
    assert principal.tenant == "acme"


async def test_the_key_caches_are_bounded(
    store: CountingKeyStore, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_MAX_CACHED", 3)
    monkeypatch.setattr(module, "_MAX_UNKNOWN", 3)
    keys = ApiKeys(store=store, clock=clock)
    for _ in range(10):
        _, key = await create_key(store, clock)
        assert await keys.look_up(key)
        assert await keys.look_up(issue("acme", "", (), clock(), None)[1].encode()) is None
    assert len(keys._stored) == 3
    assert len(keys._unknown) == 3


async def test_a_row_without_a_tenant_grants_no_access(store: CountingKeyStore, clock: Clock) -> None:
    row, key = issue("acme", "", (), clock(), None)
    await store.store.add_api_key(ApiKey(**{**_to_fields(row), "tenant": ""}))
    assert await ApiKeys(store=store, clock=clock).look_up(key.encode()) is None


def _to_fields(row: ApiKey) -> dict[str, Any]:
    return {name: getattr(row, name) for name in row.__struct_fields__}


async def test_a_server_that_cannot_check_for_keys_does_not_start(store: CountingKeyStore) -> None:
    store.fails = True
    with pytest.raises(StartupError, match="The store is down"):
        await ApiKeys(store=store).open()


async def test_listening_beyond_loopback_requires_a_key(store: CountingKeyStore, clock: Clock) -> None:
    with pytest.raises(StartupError, match="antiphon keys create"):
        ApiKeys().require_for("0.0.0.0")
    ApiKeys([ConfiguredKey("flag 1", "k")]).require_for("0.0.0.0")
    keys = ApiKeys(store=store, clock=clock)
    keys.require_for("0.0.0.0")
    with pytest.raises(StartupError, match=r"Listening on 0\.0\.0\.0"):
        await keys.open()
    await create_key(store, clock)
    await keys.open()


@pytest.mark.parametrize("tenant", ["", "A", "-a", ".a", "a b", "a/b", "a\n", "ä", "a" * 64, "a:b"])
def test_an_invalid_tenant_name_is_rejected(tenant: str) -> None:
    with pytest.raises(StartupError, match="is not a valid tenant name"):
        issue(tenant, "", (), 0.0, None)


def test_the_name_of_a_key_may_be_as_long_as_its_limit() -> None:
    row, _ = issue("a", "x" * 100, (), 0.0, 1.0)
    assert row.name == "x" * 100


async def test_keys_are_refreshed_until_the_server_stops(
    store: CountingKeyStore, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "REFRESH_SECONDS", 0.001)
    row, key = await create_key(store, clock)
    keys = ApiKeys(store=store, clock=clock)
    assert await keys.look_up(key)
    await store.store.revoke_api_key(row.id)
    store.looked_up.clear()
    refreshing = asyncio.ensure_future(keys.run_forever())
    async with asyncio.timeout(20):
        await store.looked_up.wait()
    assert keys.find(key) is None
    assert not refreshing.done()
    refreshing.cancel()


@pytest.mark.parametrize("has_store", [False, True])
async def test_keys_that_cannot_change_are_not_refreshed(store: CountingKeyStore, has_store: bool) -> None:
    store.name = "memory"
    async with asyncio.timeout(20):
        await ApiKeys(store=store if has_store else None).run_forever()


def test_invalid_key_attributes_are_rejected() -> None:
    for wrong in ({"name": "x" * 101}, {"name": "a\nb"}, {"scopes": ("root",)}, {"expires": 0.0}):
        arguments: dict[str, Any] = {"tenant": "a", "name": "", "scopes": (), "created": 0.0, "expires": None, **wrong}
        with pytest.raises(StartupError):
            issue(**arguments)
