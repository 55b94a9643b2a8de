"""Who may come in: by what is known at once, what the store is asked for, and what it says later."""

import asyncio
import re
from collections.abc import AsyncIterator
from typing import Any

import pytest

from antiphon.config.key_settings import GivenKey
from antiphon.errors import Busy, StartupError, Unavailable
from antiphon.service.access import api_keys as module
from antiphon.service.access.api_key_format import issue
from antiphon.service.access.api_keys import Keys
from antiphon.service.access.principal import Principal
from antiphon.stores.base import ApiKey, Store
from antiphon.stores.registry import make_store
from tests.stores.rows import TTL, Clock

pytestmark = pytest.mark.anyio

ADMIN_TOO = frozenset({"inference", "admin"})


class Counted:
    """A store of keys that counts what it is asked, and can be made to wait or to fail."""

    name = "sqlite"

    def __init__(self, store: Store) -> None:
        self.store = store
        self.asked: list[list[str]] = []
        self.may_answer, self.may_look = asyncio.Event(), asyncio.Event()
        self.may_answer.set()
        self.may_look.set()
        self.fails = False

    async def find_api_keys(self, ids: list[str]) -> list[ApiKey]:
        self.asked.append(ids)
        await self.may_answer.wait()
        if self.fails:
            raise Unavailable("It is away.", retry_after=1.0)
        return await self.store.find_api_keys(ids)

    async def shared(self, name: str, new: bytes) -> bytes:
        return await self.store.shared(name, new)

    async def has_api_keys(self) -> bool:
        if self.fails:
            raise Unavailable("It is away.", retry_after=1.0)
        found = await self.store.has_api_keys()
        await self.may_look.wait()
        return found


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def store(clock: Clock) -> AsyncIterator[Counted]:
    inner = make_store("memory", TTL, clock)
    await inner.open()
    yield Counted(inner)
    await inner.close()


async def created(store: Counted, clock: Clock, **given: Any) -> tuple[ApiKey, bytes]:
    wish: dict[str, Any] = {"tenant": "acme", "name": "", "scopes": (), "created": clock(), "expires": None, **given}
    row, key = issue(**wish)
    await store.store.add_api_key(row)
    return row, key.encode()


async def test_a_given_key_is_known_at_once_and_may_do_everything() -> None:
    keys = Keys([GivenKey("flag 1", "secret"), GivenKey("line 2", "other", "acme")])
    assert keys.required
    one, other = keys.find(b"secret"), keys.find(b"other")
    assert one is not None
    assert other is not None
    assert one == Principal(tenant="default", key=one.key, scopes=ADMIN_TOO)
    assert other == Principal(tenant="acme", key=other.key, scopes=frozenset({"inference"}))
    assert re.fullmatch("given_[0-9a-f]{12}", one.key)
    assert one.key != other.key
    for wrong in (b"", b"secre", b"secret ", b"secrets", b"\xff", b"x" * 100_000):
        assert keys.find(wrong) is None
        assert not keys.may_ask(wrong)


def named(keys: Keys, key: bytes) -> str:
    found = keys.find(key)
    assert found is not None
    return found.key


async def test_a_given_key_is_called_the_same_wherever_it_stands_and_on_every_server_of_a_store(store: Counted) -> None:
    keys = Keys([GivenKey("line 1", "secret")], store)
    await keys.open()
    name = named(keys, b"secret")
    keys.renew([GivenKey("line 1", "new"), GivenKey("line 2", "secret")])
    assert named(keys, b"secret") == name
    assert named(keys, b"new") != name
    other = Keys([GivenKey("flag 1", "secret")], store)
    await other.open()
    assert named(other, b"secret") == name
    elsewhere = Keys([GivenKey("line 1", "secret")])
    await elsewhere.open()
    assert named(elsewhere, b"secret") != name, "who does not have the store cannot tell what a key is called"


async def test_the_store_is_asked_once_for_a_key_however_many_come_with_it(store: Counted, clock: Clock) -> None:
    row, key = await created(store, clock)
    keys = Keys(store=store, clock=clock)
    assert keys.find(key) is None
    assert keys.may_ask(key)
    store.may_answer.clear()
    async with asyncio.timeout(30), asyncio.TaskGroup() as tasks:
        asking = [tasks.create_task(keys.ask(key)) for _ in range(20)]
        await asyncio.sleep(0)
        store.may_answer.set()
    expected = Principal(tenant="acme", key=row.id, scopes=frozenset({"inference"}))
    assert [task.result() for task in asking] == [expected] * 20
    assert keys.find(key) == expected
    assert store.asked == [[row.id]]


async def test_a_wrong_secret_behind_a_right_id_is_refused_and_asked_for_once(store: Counted, clock: Clock) -> None:
    _, key = await created(store, clock)
    forged = key[:-1] + (b"0" if key[-1:] != b"0" else b"1")
    keys = Keys(store=store, clock=clock)
    for _ in range(5):
        assert await keys.ask(forged) is None
    assert len(store.asked) == 1
    assert (await keys.ask(key)) is not None


@pytest.mark.parametrize(
    "key", [b"ak_", b"ak_x_y", b"sk-123", b"ak_" + b"0" * 32, b"AK_" + b"0" * 32 + b"_" + b"0" * 48, b"\xff" * 84]
)
async def test_what_cannot_be_a_key_of_the_store_does_not_trouble_it(store: Counted, key: bytes) -> None:
    assert not Keys(store=store).may_ask(key)


async def test_a_key_that_is_revoked_is_out_at_the_next_look(store: Counted, clock: Clock) -> None:
    row, key = await created(store, clock)
    _, other = await created(store, clock, tenant="other")
    keys = Keys(store=store, clock=clock)
    for one in (key, other):
        assert await keys.ask(one)
    await store.store.revoke_api_key(row.id)
    await keys.look()
    assert keys.find(key) is None
    assert await keys.ask(key) is None
    assert keys.find(other) is not None


async def test_a_key_is_out_the_moment_it_expires(store: Counted, clock: Clock) -> None:
    _, key = await created(store, clock, expires=clock() + 10)
    keys = Keys(store=store, clock=clock)
    assert await keys.ask(key)
    clock.now += 9.9
    assert keys.find(key)
    clock.now += 0.1
    assert keys.find(key) is None
    assert await keys.ask(key) is None


async def test_once_there_was_a_key_everybody_needs_one(store: Counted, clock: Clock) -> None:
    keys = Keys(store=store, clock=clock)
    await keys.open()
    assert not keys.required
    row, _ = await created(store, clock)
    await store.store.revoke_api_key(row.id)
    await keys.look()
    assert keys.required
    later = Keys([GivenKey("flag 1", "k")])
    later.renew([])
    assert later.required
    assert later.find(b"k") is None


async def test_the_first_key_is_good_before_anybody_has_looked(store: Counted, clock: Clock) -> None:
    keys = Keys(store=store, clock=clock)
    await keys.open()
    _, key = await created(store, clock)
    found = await keys.ask(key)
    assert found is not None
    assert found.tenant == "acme"
    assert keys.required


async def test_a_look_that_saw_no_key_yet_does_not_open_what_is_closed_meanwhile(store: Counted, clock: Clock) -> None:
    keys = Keys(store=store, clock=clock)
    store.may_look.clear()
    async with asyncio.timeout(30), asyncio.TaskGroup() as tasks:
        tasks.create_task(keys.look())
        await asyncio.sleep(0)
        _, key = await created(store, clock)
        assert await keys.ask(key)
        store.may_look.set()
    assert keys.required


async def test_while_the_store_is_away_what_it_said_holds_for_some_minutes(
    store: Counted, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, key = await created(store, clock)
    now = [1000.0]
    monkeypatch.setattr(module, "monotonic", lambda: now[0])
    keys = Keys(store=store, clock=clock)
    assert await keys.ask(key)
    await keys.look()
    store.fails = True
    for seconds, known in ((1.0, True), (module.TRUST_SECONDS - 1, True), (1.0, False)):
        now[0] += seconds
        await keys._look_if_possible()
        assert (keys.find(key) is not None) is known
    with pytest.raises(Unavailable):
        await keys.ask(key)
    store.fails = False
    assert await keys.ask(key)


async def test_the_crowd_of_those_who_are_asked_for_has_a_bound(store: Counted, clock: Clock) -> None:
    keys = Keys(store=store, clock=clock)
    unknown = [issue("acme", "", (), clock(), None)[1].encode() for _ in range(100)]
    store.may_answer.clear()
    async with asyncio.timeout(30):
        asking = [asyncio.ensure_future(keys.ask(key)) for key in unknown]
        while len(done := [task for task in asking if task.done()]) < 36:  # noqa: ASYNC110 - nobody says when
            await asyncio.sleep(0)
        assert len(done) == 36
        assert {type(task.exception()) for task in done} == {Busy}
        assert len(store.asked) <= 8
        store.may_answer.set()
        assert [await task for task in asking if task not in done] == [None] * 64
    assert await keys.ask(unknown[0]) is None


async def test_what_is_remembered_has_a_bound(store: Counted, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MOST_KNOWN", 3)
    monkeypatch.setattr(module, "_MOST_UNKNOWN", 3)
    keys = Keys(store=store, clock=clock)
    for _ in range(10):
        _, key = await created(store, clock)
        assert await keys.ask(key)
        assert await keys.ask(issue("acme", "", (), clock(), None)[1].encode()) is None
    assert len(keys._stored) == 3
    assert len(keys._unknown) == 3


async def test_a_row_without_a_tenant_opens_nothing(store: Counted, clock: Clock) -> None:
    row, key = issue("acme", "", (), clock(), None)
    await store.store.add_api_key(ApiKey(**{**_fields(row), "tenant": ""}))
    assert await Keys(store=store, clock=clock).ask(key.encode()) is None


def _fields(row: ApiKey) -> dict[str, Any]:
    return {name: getattr(row, name) for name in row.__struct_fields__}


async def test_a_server_that_cannot_know_whether_there_are_keys_does_not_start(store: Counted) -> None:
    store.fails = True
    with pytest.raises(StartupError, match="It is away"):
        await Keys(store=store).open()


async def test_beyond_loopback_there_has_to_be_a_key(store: Counted, clock: Clock) -> None:
    with pytest.raises(StartupError, match="antiphon keys create"):
        Keys().demand("0.0.0.0")
    Keys([GivenKey("flag 1", "k")]).demand("0.0.0.0")
    keys = Keys(store=store, clock=clock)
    keys.demand("0.0.0.0")
    with pytest.raises(StartupError, match=r"Listening on 0\.0\.0\.0"):
        await keys.open()
    await created(store, clock)
    await keys.open()


@pytest.mark.parametrize("tenant", ["", "A", "-a", ".a", "a b", "a/b", "a\n", "ä", "a" * 64, "a:b"])
def test_a_tenants_name_is_checked(tenant: str) -> None:
    with pytest.raises(StartupError, match="cannot be the name of a tenant"):
        issue(tenant, "", (), 0.0, None)


def test_what_does_not_fit_a_key_is_said() -> None:
    for wrong in ({"name": "x" * 101}, {"name": "a\nb"}, {"scopes": ("root",)}, {"expires": 0.0}):
        wish: dict[str, Any] = {"tenant": "a", "name": "", "scopes": (), "created": 0.0, "expires": None, **wrong}
        with pytest.raises(StartupError):
            issue(**wish)
