"""What one tenant has is nowhere for another: each of its ids, in every place of every route, answers exactly like an
id that never was; over JSON, as a stream and on a WebSocket. And after all that was tried, it is as it was."""

import re
from collections.abc import Iterator
from itertools import product
from statistics import NormalDist, median
from time import perf_counter
from typing import Any

from drills.harness.findings import Figure, Findings
from drills.tenants.fixtures import BETA, CANARY, TOOL, World, bearer, twin
from drills.tenants.raw_requests import Reply, talking

_ID = re.compile(rb"\b[a-z]+_[0-9a-f]{12,}\b")
# What differs between answers to the same tenant: times, tokens that its cache had, what is sealed or padded.
_PASSING = re.compile(
    rb'"(created_at|completed_at|expires_at)":[0-9.]+|"[a-z_]*tokens[a-z_]*":(\[[^]]*\]|\d+)'
    rb'|"(encrypted_content|obfuscation)":"[^"]*"'
)
_FINE = ("queued", "in_progress", "completed")
_OWN = {b"x-request-id", b"openai-processing-ms", b"content-length", b"date"}
_WAYS = ("json", "stream", "background", "websocket")


async def wall(world: World, step: int, findings: Findings) -> None:
    before = await _belongings(world)
    paths = (await world.beta("GET", "/openapi.json")).json()["paths"]
    await _routes(world, paths, step, findings)
    await _fields(world, step, findings)
    await _carried(world, findings)
    await _keyed(world, findings)
    await _lists(world, findings)
    await _timing(world, 100 if step > 1 else 400, findings)
    if await _belongings(world) != before:
        findings.violated("what alpha has is not what it was")


async def _belongings(world: World) -> dict[str, tuple[int, bytes]]:
    """As their owner sees them; of what runs, that it does."""
    seen = {}
    for kind in ("response", "background", "called", "waiting", "conversation"):
        folder = "conversations" if kind == "conversation" else "responses"
        reply = await world.alpha("GET", f"/v1/{folder}/{world.ids[kind]}")
        seen[kind] = reply.status, reply.body
    running = await world.alpha("GET", f"/v1/responses/{world.ids['running']}")
    seen["running"] = running.status, b"fine" if running.json().get("status") in _FINE else running.body
    return seen


async def _routes(world: World, paths: dict[str, Any], step: int, findings: Findings) -> None:
    """Every id in every place of every path."""
    names = list(world.ids.values())
    wanted = [(path, method.upper()) for path, methods in paths.items() for method in methods if "{" in path]
    tries = [
        (path, method, ids)
        for path, method in wanted
        for ids in product(names, repeat=path.count("{"))
        if path.count("{") == 1 or world.ids["conversation"] in ids or names.index(ids[0]) % 4 == 0
    ]
    for path, method, ids in tries[::step]:
        for query in ("", "?stream=true", "?limit=5&order=asc") if method == "GET" else ("",):
            theirs, nobodys = [_filled(path, given) + query for given in (ids, [twin(name) for name in ids])]
            for body in _contents(world, path) if method == "POST" else [None]:
                pair = [await world.beta(method, where, body) for where in (theirs, nobodys)]
                _compare(f"{method} {theirs}", pair, findings)


def _contents(world: World, path: str) -> list[dict[str, Any]]:
    """Nothing, and what its owner could send there."""
    message = {"type": "message", "role": "user", "content": "hi"}
    good: dict[str, dict[str, Any]] = {
        "tool_outputs": {"call_id": world.ids["pending_call"], "output": "x"},
        "items": {"items": [message]},
        "cancel": {},
    }
    return [{}, good.get(path.rpartition("/")[2], {"metadata": {"a": "b"}})]


def _filled(path: str, names: Any) -> str:
    given = iter(names)
    return re.sub(r"{[^}]+}", lambda _: next(given), path)


def _compare(what: str, pair: list[Reply], findings: Findings) -> None:
    findings.tried()
    theirs, nobodys = pair
    if (some := _bare(theirs)) != (others := _bare(nobodys)):
        findings.violated(
            f"{what} answers {theirs.status} {_apart(some, others)}, an unknown id {_apart(others, some)}"
        )
    if CANARY.encode() in theirs.body:
        findings.violated(f"{what} tells beta what alpha has: {theirs.body[:300]!r}")
    if theirs.status >= 500:
        findings.violated(f"{what} answers {theirs.status}")


def _bare(reply: Reply) -> tuple[int, list[Any], bytes]:
    """Without what differs from one request to the next."""
    headers = sorted(header for header in reply.headers if header[0] not in _OWN and b"ratelimit" not in header[0])
    return reply.status, headers, _PASSING.sub(b"", _ID.sub(b"id", reply.body))


def _apart(one: object, other: object) -> str:
    """Where it is another."""
    text, others = repr(one), repr(other)
    at = next((index for index, pair in enumerate(zip(text, others, strict=False)) if len({*pair}) > 1), 0)
    return text[max(0, at - 60) : at + 60]


def _bodies(name: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """All places in a request that take an id."""
    call = {"type": "function_call_output", "call_id": name, "output": "x"}
    yield "previous_response_id", {"previous_response_id": name, "input": "hi"}
    yield "conversation", {"conversation": name, "input": "hi"}
    yield "conversation.id", {"conversation": {"id": name}, "input": "hi"}
    yield "item_reference", {"input": [{"type": "item_reference", "id": name}]}
    yield "call_id", {"input": [call], "tools": [TOOL]}
    yield "approval", {"input": [{"type": "mcp_approval_response", "approval_request_id": name, "approve": True}]}
    yield "item id", {"input": [{"type": "message", "id": name, "role": "user", "content": "hi"}]}


async def _fields(world: World, step: int, findings: Findings) -> None:
    tries = [(kind, name, way) for kind, name in world.ids.items() for way in _WAYS]
    for kind, name, way in tries[::step]:
        other = twin(name)
        for (field, theirs), (_, nobodys) in zip(_bodies(name), _bodies(other), strict=True):
            pair = [await _created(world, way, body) for body in (theirs, nobodys)]
            _compare(f"{way}: {kind} as {field}", pair, findings)
        steers = [{"type": "response.steer", "previous_response_id": one, "input": "hi"} for one in (name, other)]
        _compare(f"{kind} is steered", [await _on_socket(world, steer) for steer in steers], findings)
    for path in ("/v1/responses/input_tokens", "/v1/responses/compact"):
        for name in list(world.ids.values())[::step]:
            for (field, theirs), (_, nobodys) in zip(_bodies(name), _bodies(twin(name)), strict=True):
                pair = [await world.beta("POST", path, {"model": "fake", **body}) for body in (theirs, nobodys)]
                _compare(f"{path}: {field}", pair, findings)
    await _in_conversations(world, findings)


async def _in_conversations(world: World, findings: Findings) -> None:
    mine = (await world.beta("POST", "/v1/conversations", {})).json()["id"]
    for kind, name in world.ids.items():
        for path in ("/v1/conversations", f"/v1/conversations/{mine}/items"):
            references = [{"items": [{"type": "item_reference", "id": one}]} for one in (name, twin(name))]
            _compare(f"{kind} put into {path}", [await world.beta("POST", path, body) for body in references], findings)
        for where in (f"/v1/conversations/{mine}/items", "/v1/responses", "/v1/conversations"):
            pair = [await world.beta("GET", f"{where}?after={one}") for one in (name, twin(name))]
            _compare(f"{kind} as a cursor of {where}", pair, findings)
            if pair[0].status not in (400, 404):
                findings.violated(f"{kind} is a cursor of {where} for beta: {pair[0].status}")


async def _created(world: World, way: str, body: dict[str, Any]) -> Reply:
    wish = {"model": "fake", "max_output_tokens": 20, **body}
    match way:
        case "websocket":
            return await _on_socket(world, {"type": "response.create", **wish})
        case "stream":
            return await world.beta("POST", "/v1/responses", {**wish, "stream": True})
        case "background":
            reply = await world.beta("POST", "/v1/responses", {**wish, "background": True})
            return Reply(reply.status, reply.headers, re.sub(rb'"(queued|in_progress)"', b'"begun"', reply.body))
        case _:
            return await world.beta("POST", "/v1/responses", wish)


async def _on_socket(world: World, message: dict[str, Any]) -> Reply:
    """All that it is told, up to the end of what it asked for."""
    async with talking(world.knocking, bearer(world.keys.beta)) as talk:
        return Reply(200, (), b"\n".join(await talk.ask(message)))


async def _carried(world: World, findings: Findings) -> None:
    """What alpha's clients carry sealed, in beta's hands."""
    for kind, item in world.sealed.items():
        for path in ("/v1/responses", "/v1/responses/compact", "/v1/responses/input_tokens", "/v1/conversations"):
            field = "items" if path.endswith("conversations") else "input"
            given = {field: [item, {"type": "message", "role": "user", "content": "hi"}]}
            reply = await world.beta("POST", path, given if field == "items" else {"model": "fake", **given})
            findings.tried()
            if reply.status != 400 or CANARY.encode() in reply.body:
                findings.violated(f"alpha's {kind} is taken from beta at {path}: {reply.status} {reply.body[:200]!r}")
            own = await world.alpha("POST", path, given if field == "items" else {"model": "fake", **given})
            if own.status != 200:
                findings.violated(f"alpha's {kind} is not taken from alpha at {path}: {own.status} {own.body[:200]!r}")


async def _keyed(world: World, findings: Findings) -> None:
    """One Idempotency-Key, two tenants."""
    header = (b"Idempotency-Key", b"the-same")
    mine = await world.alpha("POST", "/v1/responses", {"model": "fake", "input": CANARY}, header)
    theirs = await world.beta("POST", "/v1/responses", {"model": "fake", "input": "mine"}, header)
    findings.tried()
    if theirs.status != 200 or theirs.json()["id"] == mine.json()["id"] or CANARY.encode() in theirs.body:
        findings.violated(f"beta's Idempotency-Key meets alpha's: {theirs.status} {theirs.body[:200]!r}")


async def _lists(world: World, findings: Findings) -> None:
    for where in ("responses", "conversations"):
        for order in ("asc", "desc"):
            reply = await world.beta("GET", f"/v1/{where}?limit=100&order={order}")
            findings.tried()
            if reply.status != 200 or any(name.encode() in reply.body for name in world.ids.values()):
                findings.violated(f"beta's list of {where} has something of alpha's, or is none: {reply.status}")
    listed = (await world.alpha("GET", "/v1/responses?limit=100")).body
    if world.ids["response"].encode() not in listed:
        findings.violated(f"alpha's own list lacks what alpha has ({BETA} was looked at first)")


async def _timing(world: World, pairs: int, findings: Findings) -> None:
    """How long it takes to be told that there is nothing: the same, whoever's it is."""
    theirs: list[float] = []
    nobodys: list[float] = []
    for _ in range(pairs):
        for name, times in ((world.ids["response"], theirs), (twin(world.ids["response"]), nobodys)):
            began = perf_counter()
            await world.beta("GET", f"/v1/responses/{name}")
            times.append(perf_counter() - began)
    findings.tried(pairs)
    findings.figure(Figure("foreign/unknown median", median(theirs) / median(nobodys)))
    findings.figure(Figure("timing p", _likelihood(theirs, nobodys), least=0.001))


def _likelihood(some: list[float], others: list[float]) -> float:
    """Mann and Whitney's: of a difference at least this large, if there is none."""
    ranks = {value: rank for rank, value in enumerate(sorted([*some, *others]), 1)}
    n, m = len(some), len(others)
    u = sum(ranks[value] for value in some) - n * (n + 1) / 2
    spread = (n * m * (n + m + 1) / 12) ** 0.5
    return 2 * (1 - NormalDist().cdf(abs(u - n * m / 2) / spread))
