"""A server with two tenants, and one of everything that the first of them has: what the second must never see."""

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
from antiphon.service.access.api_key_format import issue
from antiphon.stores.base import Store
from antiphon.stores.registry import make_store
from drills.harness.process import Process, servers
from drills.harness.storage_locations import Place
from drills.tenants.raw_requests import Header, Knocking, Reply, Talk, talking

ALPHA, BETA = "alpha", "beta"
CANARY = "CANARY-OF-ALPHA"
LONG = " ".join([CANARY, *["word"] * 20_000])  # what takes long to be said
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
_SECONDS = 20.0


class Keyed(Struct, frozen=True):
    """Keys, by what is the matter with them."""

    alpha: str
    beta: str
    admin: str  # of beta, for nothing else
    revoked: str
    expired: str


class World:
    def __init__(self, process: Process, keys: Keyed, place: Place) -> None:
        self.process = process
        self._place = place
        self.keys = keys
        self.knocking = Knocking(process.client.port)
        self.output = ""  # what the server wrote, in the end
        self.ids: dict[str, str] = {}  # of alpha, by kind
        self.sealed: dict[str, dict[str, Any]] = {}  # items of alpha that a client carries

    async def alpha(self, method: str, path: str, body: Any = None, *headers: Header) -> Reply:
        return await self.knocking.ask(method, path, bearer(self.keys.alpha), *headers, body=body)

    async def beta(self, method: str, path: str, body: Any = None, *headers: Header) -> Reply:
        return await self.knocking.ask(method, path, bearer(self.keys.beta), *headers, body=body)

    async def made(self, path: str, **body: Any) -> dict[str, Any]:
        """What alpha makes. Raises RuntimeError if it cannot."""
        given = {"model": "fake", **body} if path.startswith("/v1/responses") else body
        reply = await self.alpha("POST", path, given)
        if reply.status != 200:
            raise RuntimeError(f"{path}: {reply.status} {reply.body[:300]!r}")
        found: dict[str, Any] = reply.json()
        return found

    async def another_key(self) -> tuple[str, Callable[[], Awaitable[None]]]:
        """Of alpha; and how to revoke it."""
        row, key = issue(ALPHA, "", (), time.time(), None)

        async def revoke() -> None:
            async with _opened(self._place) as store:
                await store.revoke_api_key(row.id)

        async with _opened(self._place) as store:
            await store.add_api_key(row)
        return key, revoke

    async def furnish(self) -> None:
        """One of each kind."""
        said = await self.made("/v1/responses", input=CANARY, metadata={"note": CANARY})
        items = (await self.alpha("GET", f"/v1/responses/{said['id']}/input_items")).json()
        talk = await self.made("/v1/conversations", items=[{"role": "user", "content": CANARY}])
        lines = (await self.alpha("GET", f"/v1/conversations/{talk['id']}/items")).json()
        runs = await self.made("/v1/responses", input=LONG, background=True)
        streams = await self.made("/v1/responses", input=CANARY, background=True)
        calls = await self.made("/v1/responses", input=CANARY, tools=[TOOL], tool_choice="required")
        call, (waits, pending) = _call_in(calls), await self._waiting()
        self.ids = {
            "response": said["id"],
            "running": runs["id"],
            "background": streams["id"],
            "called": calls["id"],
            "waiting": waits,
            "output": said["output"][0]["id"],
            "input": items["data"][0]["id"],
            "conversation": talk["id"],
            "line": lines["data"][0]["id"],
            "call": call["call_id"],
            "function_call": call["id"],
            "pending_call": pending,
        }
        self.ids["kept"] = await self._kept()
        await self._carry()

    async def _kept(self) -> str:
        """A response that is not stored; its client is gone, and may come back."""
        body = {"model": "fake", "input": LONG, "store": False, "stream": True}
        first = await self.knocking.beginning("POST", "/v1/responses", bearer(self.keys.alpha), body=body)
        form = re.search(rb'"id":"(resp_[0-9a-f]+)"', first)
        if form is None:
            raise RuntimeError(f"no stream began: {first[:300]!r}")
        return form[1].decode()

    async def _waiting(self) -> tuple[str, str]:
        """A response that waits for a client's tool, and the call that it waits for."""
        wish = {"input": CANARY, "tools": [TOOL], "tool_choice": "required", "wait_for_tool_outputs": True}
        begun = await self.made("/v1/responses", background=True, **wish)
        async with asyncio.timeout(_SECONDS):
            while True:
                found = (await self.alpha("GET", f"/v1/responses/{begun['id']}")).json()
                if call := _call_in(found):
                    return begun["id"], call["call_id"]
                await asyncio.sleep(0.02)

    async def _carry(self) -> None:
        include = ["reasoning.encrypted_content"]
        thought = await self.made(
            "/v1/responses", input=CANARY, reasoning={"effort": "low"}, store=False, include=include
        )
        compact = await self.made("/v1/responses/compact", input=[{"role": "user", "content": CANARY}])
        for item in (*thought["output"], *compact["output"]):
            if item.get("encrypted_content"):
                self.sealed[item["type"]] = item


def _call_in(response: dict[str, Any]) -> dict[str, Any]:
    """Nothing, as long as there is none."""
    return next((item for item in response["output"] if item["type"] == "function_call"), {})


def bearer(key: str) -> Header:
    return (b"Authorization", b"Bearer " + key.encode())


def twin(name: str) -> str:
    """An id like this one, that nobody has."""
    form = _ID.match(name)
    if form is None:
        return name[:-8] + secrets.token_hex(4)
    digits = form[2]
    return form[1] + digits[:20] + secrets.token_hex(len(digits))[: len(digits) - 20]


@contextlib.asynccontextmanager
async def world(where: Place) -> AsyncIterator[World]:
    keys, request_id = await _prepared(where)
    with servers(where, _CONFIG, marks=False) as running:
        found = World(await running.start(), keys, where)
        await found.furnish()
        found.ids["approval"] = request_id
        async with talking(found.knocking, bearer(keys.alpha)) as talk:
            found.ids["cached"] = await _cached(talk)
            yield found
        await found.process.stop()
        found.output = found.process.output()


async def _cached(talk: Talk) -> str:
    """A response that only alpha's connection knows."""
    told = await talk.ask({"type": "response.create", "model": "fake", "input": CANARY, "store": False})
    made: str = msgspec.json.decode(told[-1])["response"]["id"]
    return made


async def _prepared(where: Place) -> tuple[Keyed, str]:
    """Its keys, and the id of something that alpha was asked to allow."""
    async with _opened(where) as store:
        now = time.time()
        made: list[str] = []
        wishes = [(ALPHA, ()), (BETA, ()), (BETA, ("admin",)), (ALPHA, ()), (ALPHA, ())]
        for number, (tenant, scopes) in enumerate(wishes):
            past = now - 1000
            row, key = issue(tenant, "", scopes, past if number == 4 else now, past + 1 if number == 4 else None)
            await store.add_api_key(row)
            if number == 3:
                await store.revoke_api_key(row.id)
            made.append(key)
        request_id = ItemIds(new_id("resp"))("mcpr")
        await store.ask_approval(ALPHA, request_id, bytes(64), now + 1000)
        return Keyed(*made), request_id


@contextlib.asynccontextmanager
async def _opened(where: Place) -> AsyncIterator[Store]:
    store = make_store(where.store, 1e6)
    await store.open()
    try:
        yield store
    finally:
        await store.close()
