"""A server with two tenants, and one object of every kind that belongs to the first; the second must never see them."""

import asyncio
import contextlib
import re
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import msgspec
from msgspec import Struct

from antiphon.ids import ItemIds, new_id
from antiphon.service.access.api_keys import issue
from antiphon.stores.registry import make_store
from antiphon.stores.sql.store import Store
from drills.harness.process import Process, open_servers
from drills.harness.storage_locations import StorageLocation
from drills.tenants.raw_requests import Header, RawClient, RawWebSocket, Reply, open_websocket

ALPHA, BETA = "alpha", "beta"
CANARY = "CANARY-OF-ALPHA"
LONG_INPUT = " ".join([CANARY, *["word"] * 20_000])  # an input whose answer takes long
TOOL = {"type": "function", "name": "weather", "parameters": {"type": "object", "properties": {}}}
_CONFIG = {
    "fake_rate": 1000.0,
    "fake_joined": 10,
    "context": 200_000,
    "keep_streams": 600.0,
    "log_level": "debug",
    "access_log": "-",
}
_ID = re.compile(r"^(.*_)([0-9a-f]+)$")
_TIMEOUT_SECONDS = 20.0


class FixtureKeys(Struct, frozen=True):
    """Keys by tenant and state."""

    alpha: str
    beta: str
    admin: str  # of beta, with the scope `admin` only
    revoked: str
    expired: str


class TenantFixture:
    def __init__(self, process: Process, keys: FixtureKeys, storage: StorageLocation) -> None:
        self.process = process
        self._storage = storage
        self.keys = keys
        self.raw_client = RawClient(process.client.port)
        self.output = ""  # the server's complete output, set at the end
        self.ids: dict[str, str] = {}  # objects of alpha, by kind
        self.encrypted_items: dict[str, dict[str, Any]] = {}  # alpha's items with encrypted content, by type

    async def alpha(self, method: str, path: str, body: Any = None, *headers: Header) -> Reply:
        return await self.raw_client.request(method, path, bearer(self.keys.alpha), *headers, body=body)

    async def beta(self, method: str, path: str, body: Any = None, *headers: Header) -> Reply:
        return await self.raw_client.request(method, path, bearer(self.keys.beta), *headers, body=body)

    async def create(self, path: str, **body: Any) -> dict[str, Any]:
        """Create an object as alpha. Raises RuntimeError if that fails."""
        fields = {"model": "fake", **body} if path.startswith("/v1/responses") else body
        reply = await self.alpha("POST", path, fields)
        if reply.status != 200:
            raise RuntimeError(f"{path}: {reply.status} {reply.body[:300]!r}")
        created: dict[str, Any] = reply.json()
        return created

    async def add_key(self) -> tuple[str, Callable[[], Awaitable[None]]]:
        """Add a key of alpha; returns it and a function that revokes it."""
        row, key = issue(ALPHA, "", (), time.time(), None)

        async def revoke() -> None:
            async with _open_store(self._storage) as store:
                await store.revoke_api_key(row.id)

        async with _open_store(self._storage) as store:
            await store.add_api_key(row)
        return key, revoke

    async def populate(self) -> None:
        """Create one object of each kind as alpha."""
        response = await self.create("/v1/responses", input=CANARY, metadata={"note": CANARY})
        items = (await self.alpha("GET", f"/v1/responses/{response['id']}/input_items")).json()
        conversation = await self.create("/v1/conversations", items=[{"role": "user", "content": CANARY}])
        conversation_items = (await self.alpha("GET", f"/v1/conversations/{conversation['id']}/items")).json()
        running = await self.create("/v1/responses", input=LONG_INPUT, background=True)
        background = await self.create("/v1/responses", input=CANARY, background=True)
        called = await self.create("/v1/responses", input=CANARY, tools=[TOOL], tool_choice="required")
        call, (waiting_id, pending_call_id) = _find_call(called), await self._create_waiting()
        self.ids = {
            "response": response["id"],
            "running": running["id"],
            "background": background["id"],
            "called": called["id"],
            "waiting": waiting_id,
            "output": response["output"][0]["id"],
            "input": items["data"][0]["id"],
            "conversation": conversation["id"],
            "line": conversation_items["data"][0]["id"],
            "call": call["call_id"],
            "function_call": call["id"],
            "pending_call": pending_call_id,
        }
        self.ids["kept"] = await self._create_unstored()
        await self._create_encrypted_items()

    async def _create_unstored(self) -> str:
        """Start a response that is not stored, and disconnect; its client could resume it."""
        body = {"model": "fake", "input": LONG_INPUT, "store": False, "stream": True}
        first = await self.raw_client.read_beginning("POST", "/v1/responses", bearer(self.keys.alpha), body=body)
        match = re.search(rb'"id":"(resp_[0-9a-f]+)"', first)
        if match is None:
            raise RuntimeError(f"no stream began: {first[:300]!r}")
        return match[1].decode()

    async def _create_waiting(self) -> tuple[str, str]:
        """Create a response that waits for a client's tool; returns its id and the id of the pending call."""
        fields = {"input": CANARY, "tools": [TOOL], "tool_choice": "required", "wait_for_tool_outputs": True}
        begun = await self.create("/v1/responses", background=True, **fields)
        async with asyncio.timeout(_TIMEOUT_SECONDS):
            while True:
                response = (await self.alpha("GET", f"/v1/responses/{begun['id']}")).json()
                if call := _find_call(response):
                    return begun["id"], call["call_id"]
                await asyncio.sleep(0.02)

    async def _create_encrypted_items(self) -> None:
        include = ["reasoning.encrypted_content"]
        reasoning = await self.create(
            "/v1/responses", input=CANARY, reasoning={"effort": "low"}, store=False, include=include
        )
        compact = await self.create("/v1/responses/compact", input=[{"role": "user", "content": CANARY}])
        for item in (*reasoning["output"], *compact["output"]):
            if item.get("encrypted_content"):
                self.encrypted_items[item["type"]] = item


def _find_call(response: dict[str, Any]) -> dict[str, Any]:
    """Return the function call of a response, or {} if it has none."""
    return next((item for item in response["output"] if item["type"] == "function_call"), {})


def bearer(key: str) -> Header:
    return (b"Authorization", b"Bearer " + key.encode())


def unknown_id(name: str) -> str:
    """Return an id of the same form that does not exist."""
    match = _ID.match(name)
    if match is None:
        return name[:-8] + secrets.token_hex(4)
    digits = match[2]
    return match[1] + digits[:20] + secrets.token_hex(len(digits))[: len(digits) - 20]


@contextlib.asynccontextmanager
async def open_fixture(storage: StorageLocation) -> AsyncIterator[TenantFixture]:
    keys, request_id = await _prepare_store(storage)
    with open_servers(storage, _CONFIG, mark_answers=False) as processes:
        fixture = TenantFixture(await processes.start(), keys, storage)
        await fixture.populate()
        fixture.ids["approval"] = request_id
        async with open_websocket(fixture.raw_client, bearer(keys.alpha)) as connection:
            fixture.ids["cached"] = await _create_cached(connection)
            yield fixture
        await fixture.process.stop()
        fixture.output = fixture.process.read_output()


async def _create_cached(connection: RawWebSocket) -> str:
    """Create a response that exists only in the cache of alpha's connection."""
    messages = await connection.request({"type": "response.create", "model": "fake", "input": CANARY, "store": False})
    response_id: str = msgspec.json.decode(messages[-1])["response"]["id"]
    return response_id


async def _prepare_store(storage: StorageLocation) -> tuple[FixtureKeys, str]:
    """Add the keys to the store, and an approval request of alpha; returns the keys and the request's id."""
    async with _open_store(storage) as store:
        now = time.time()
        keys: list[str] = []
        key_specs = [(ALPHA, ()), (BETA, ()), (BETA, ("admin",)), (ALPHA, ()), (ALPHA, ())]
        for number, (tenant, scopes) in enumerate(key_specs):
            past = now - 1000
            row, key = issue(tenant, "", scopes, past if number == 4 else now, past + 1 if number == 4 else None)
            await store.add_api_key(row)
            if number == 3:
                await store.revoke_api_key(row.id)
            keys.append(key)
        request_id = ItemIds(new_id("resp"))("mcpr")
        await store.ask_approval(ALPHA, request_id, bytes(64), now + 1000)
        return FixtureKeys(*keys), request_id


@contextlib.asynccontextmanager
async def _open_store(storage: StorageLocation) -> AsyncIterator[Store]:
    store = make_store(storage.store, 1e6)
    await store.open()
    try:
        yield store
    finally:
        await store.close()
