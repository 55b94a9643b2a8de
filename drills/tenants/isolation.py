"""Isolation of tenants: each id of one tenant, in every place of every route that accepts an id, gets exactly the
answer of an id that does not exist when another tenant uses it.

Requests are sent as JSON, as streams, in the background and on WebSockets. Afterwards the objects of the first tenant
must be unchanged.
"""

import re
from collections.abc import Iterator
from itertools import product
from statistics import NormalDist, median
from time import perf_counter
from typing import Any

from drills.harness.findings import Figure, Findings
from drills.tenants.fixtures import BETA, CANARY, TOOL, TenantFixture, bearer, unknown_id
from drills.tenants.raw_requests import Reply, open_websocket

_ID = re.compile(rb"\b[a-z]+_[0-9a-f]{12,}\b")
# Fields that differ between answers to the same tenant: times, token counts (cache hits), encrypted or padded content.
_VARIABLE_FIELDS = re.compile(
    rb'"(created_at|completed_at|expires_at)":[0-9.]+|"[a-z_]*tokens[a-z_]*":(\[[^]]*\]|\d+)'
    rb'|"(encrypted_content|obfuscation)":"[^"]*"'
)
_EXPECTED_STATUSES = ("queued", "in_progress", "completed")
_VARIABLE_HEADERS = {b"x-request-id", b"openai-processing-ms", b"content-length", b"date"}
_TRANSPORTS = ("json", "stream", "background", "websocket")


async def check_isolation(fixture: TenantFixture, step: int, findings: Findings) -> None:
    before = await _take_snapshot(fixture)
    paths = (await fixture.beta("GET", "/openapi.json")).json()["paths"]
    await _check_routes(fixture, paths, step, findings)
    await _check_fields(fixture, step, findings)
    await _check_encrypted_items(fixture, findings)
    await _check_idempotency_keys(fixture, findings)
    await _check_lists(fixture, findings)
    await _check_timing(fixture, 100 if step > 1 else 400, findings)
    if await _take_snapshot(fixture) != before:
        findings.add_violation("the objects of alpha have changed")


async def _take_snapshot(fixture: TenantFixture) -> dict[str, tuple[int, bytes]]:
    """Return alpha's objects as alpha sees them; for the running response only whether its status is valid."""
    snapshot = {}
    for kind in ("response", "background", "called", "waiting", "conversation"):
        folder = "conversations" if kind == "conversation" else "responses"
        reply = await fixture.alpha("GET", f"/v1/{folder}/{fixture.ids[kind]}")
        snapshot[kind] = reply.status, reply.body
    running = await fixture.alpha("GET", f"/v1/responses/{fixture.ids['running']}")
    snapshot["running"] = (
        running.status,
        b"fine" if running.json().get("status") in _EXPECTED_STATUSES else running.body,
    )
    return snapshot


async def _check_routes(fixture: TenantFixture, paths: dict[str, Any], step: int, findings: Findings) -> None:
    """Use every id in every parameter of every path."""
    names = list(fixture.ids.values())
    routes = [(path, method.upper()) for path, methods in paths.items() for method in methods if "{" in path]
    tries = [
        (path, method, ids)
        for path, method in routes
        for ids in product(names, repeat=path.count("{"))
        if path.count("{") == 1 or fixture.ids["conversation"] in ids or names.index(ids[0]) % 4 == 0
    ]
    for path, method, ids in tries[::step]:
        for query in ("", "?stream=true", "?limit=5&order=asc") if method == "GET" else ("",):
            foreign, unknown = [
                _fill_path(path, values) + query for values in (ids, [unknown_id(name) for name in ids])
            ]
            for body in _route_bodies(fixture, path) if method == "POST" else [None]:
                pair = [await fixture.beta(method, target, body) for target in (foreign, unknown)]
                _compare(f"{method} {foreign}", pair, findings)


def _route_bodies(fixture: TenantFixture, path: str) -> list[dict[str, Any]]:
    """Return an empty body and one that the owner could send to this route."""
    message = {"type": "message", "role": "user", "content": "hi"}
    valid: dict[str, dict[str, Any]] = {
        "tool_outputs": {"call_id": fixture.ids["pending_call"], "output": "x"},
        "items": {"items": [message]},
        "cancel": {},
    }
    return [{}, valid.get(path.rpartition("/")[2], {"metadata": {"a": "b"}})]


def _fill_path(path: str, ids: Any) -> str:
    values = iter(ids)
    return re.sub(r"{[^}]+}", lambda _: next(values), path)


def _compare(attempt: str, pair: list[Reply], findings: Findings) -> None:
    findings.add_trials()
    foreign, unknown = pair
    if (some := _normalise(foreign)) != (others := _normalise(unknown)):
        findings.add_violation(
            f"{attempt} answers {foreign.status} {_show_diff(some, others)}, an unknown id {_show_diff(others, some)}"
        )
    if CANARY.encode() in foreign.body:
        findings.add_violation(f"{attempt} shows beta data of alpha: {foreign.body[:300]!r}")
    if foreign.status >= 500:
        findings.add_violation(f"{attempt} answers {foreign.status}")


def _normalise(reply: Reply) -> tuple[int, list[Any], bytes]:
    """Remove the parts of a reply that differ between requests."""
    headers = sorted(
        header for header in reply.headers if header[0] not in _VARIABLE_HEADERS and b"ratelimit" not in header[0]
    )
    return reply.status, headers, _VARIABLE_FIELDS.sub(b"", _ID.sub(b"id", reply.body))


def _show_diff(one: object, other: object) -> str:
    """Return the part of the first value around the first difference."""
    text, others = repr(one), repr(other)
    at = next((index for index, pair in enumerate(zip(text, others, strict=False)) if len({*pair}) > 1), 0)
    return text[max(0, at - 60) : at + 60]


def _bodies_with_id(object_id: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield a body for every field of a request that accepts an id."""
    call = {"type": "function_call_output", "call_id": object_id, "output": "x"}
    yield "previous_response_id", {"previous_response_id": object_id, "input": "hi"}
    yield "conversation", {"conversation": object_id, "input": "hi"}
    yield "conversation.id", {"conversation": {"id": object_id}, "input": "hi"}
    yield "item_reference", {"input": [{"type": "item_reference", "id": object_id}]}
    yield "call_id", {"input": [call], "tools": [TOOL]}
    yield "approval", {"input": [{"type": "mcp_approval_response", "approval_request_id": object_id, "approve": True}]}
    yield "item id", {"input": [{"type": "message", "id": object_id, "role": "user", "content": "hi"}]}


async def _check_fields(fixture: TenantFixture, step: int, findings: Findings) -> None:
    tries = [(kind, name, transport) for kind, name in fixture.ids.items() for transport in _TRANSPORTS]
    for kind, name, transport in tries[::step]:
        other = unknown_id(name)
        for (field, foreign), (_, unknown) in zip(_bodies_with_id(name), _bodies_with_id(other), strict=True):
            pair = [await _create_response(fixture, transport, body) for body in (foreign, unknown)]
            _compare(f"{transport}: {kind} as {field}", pair, findings)
        steers = [{"type": "response.steer", "previous_response_id": one, "input": "hi"} for one in (name, other)]
        _compare(f"{kind} in response.steer", [await _send_on_websocket(fixture, steer) for steer in steers], findings)
    for path in ("/v1/responses/input_tokens", "/v1/responses/compact"):
        for name in list(fixture.ids.values())[::step]:
            for (field, foreign), (_, unknown) in zip(
                _bodies_with_id(name), _bodies_with_id(unknown_id(name)), strict=True
            ):
                pair = [await fixture.beta("POST", path, {"model": "fake", **body}) for body in (foreign, unknown)]
                _compare(f"{path}: {field}", pair, findings)
    await _check_conversations(fixture, findings)


async def _check_conversations(fixture: TenantFixture, findings: Findings) -> None:
    own_id = (await fixture.beta("POST", "/v1/conversations", {})).json()["id"]
    for kind, name in fixture.ids.items():
        for path in ("/v1/conversations", f"/v1/conversations/{own_id}/items"):
            references = [{"items": [{"type": "item_reference", "id": one}]} for one in (name, unknown_id(name))]
            _compare(
                f"{kind} put into {path}", [await fixture.beta("POST", path, body) for body in references], findings
            )
        for listing in (f"/v1/conversations/{own_id}/items", "/v1/responses", "/v1/conversations"):
            pair = [await fixture.beta("GET", f"{listing}?after={one}") for one in (name, unknown_id(name))]
            _compare(f"{kind} as a cursor of {listing}", pair, findings)
            if pair[0].status not in (400, 404):
                findings.add_violation(f"{kind} is a cursor of {listing} for beta: {pair[0].status}")


async def _create_response(fixture: TenantFixture, transport: str, body: dict[str, Any]) -> Reply:
    fields = {"model": "fake", "max_output_tokens": 20, **body}
    match transport:
        case "websocket":
            return await _send_on_websocket(fixture, {"type": "response.create", **fields})
        case "stream":
            return await fixture.beta("POST", "/v1/responses", {**fields, "stream": True})
        case "background":
            reply = await fixture.beta("POST", "/v1/responses", {**fields, "background": True})
            return Reply(reply.status, reply.headers, re.sub(rb'"(queued|in_progress)"', b'"begun"', reply.body))
        case _:
            return await fixture.beta("POST", "/v1/responses", fields)


async def _send_on_websocket(fixture: TenantFixture, message: dict[str, Any]) -> Reply:
    """Send a message and return all events up to the end of its response."""
    async with open_websocket(fixture.raw_client, bearer(fixture.keys.beta)) as connection:
        return Reply(200, (), b"\n".join(await connection.request(message)))


async def _check_encrypted_items(fixture: TenantFixture, findings: Findings) -> None:
    """Encrypted items of alpha must be rejected when beta sends them."""
    for kind, item in fixture.encrypted_items.items():
        for path in ("/v1/responses", "/v1/responses/compact", "/v1/responses/input_tokens", "/v1/conversations"):
            field = "items" if path.endswith("conversations") else "input"
            body = {field: [item, {"type": "message", "role": "user", "content": "hi"}]}
            reply = await fixture.beta("POST", path, body if field == "items" else {"model": "fake", **body})
            findings.add_trials()
            if reply.status != 400 or CANARY.encode() in reply.body:
                findings.add_violation(
                    f"alpha's {kind} is accepted from beta at {path}: {reply.status} {reply.body[:200]!r}"
                )
            own = await fixture.alpha("POST", path, body if field == "items" else {"model": "fake", **body})
            if own.status != 200:
                findings.add_violation(
                    f"alpha's {kind} is rejected from alpha at {path}: {own.status} {own.body[:200]!r}"
                )


async def _check_idempotency_keys(fixture: TenantFixture, findings: Findings) -> None:
    """The same Idempotency-Key used by two tenants must give two responses."""
    header = (b"Idempotency-Key", b"the-same")
    alpha_reply = await fixture.alpha("POST", "/v1/responses", {"model": "fake", "input": CANARY}, header)
    beta_reply = await fixture.beta("POST", "/v1/responses", {"model": "fake", "input": "mine"}, header)
    findings.add_trials()
    if (
        beta_reply.status != 200
        or beta_reply.json()["id"] == alpha_reply.json()["id"]
        or CANARY.encode() in beta_reply.body
    ):
        findings.add_violation(
            f"beta's Idempotency-Key collides with alpha's: {beta_reply.status} {beta_reply.body[:200]!r}"
        )


async def _check_lists(fixture: TenantFixture, findings: Findings) -> None:
    for where in ("responses", "conversations"):
        for order in ("asc", "desc"):
            reply = await fixture.beta("GET", f"/v1/{where}?limit=100&order={order}")
            findings.add_trials()
            if reply.status != 200 or any(name.encode() in reply.body for name in fixture.ids.values()):
                findings.add_violation(f"beta's list of {where} contains an object of alpha, or failed: {reply.status}")
    listed = (await fixture.alpha("GET", "/v1/responses?limit=100")).body
    if fixture.ids["response"].encode() not in listed:
        findings.add_violation(f"alpha's own list lacks alpha's response ({BETA} was checked first)")


async def _check_timing(fixture: TenantFixture, pairs: int, findings: Findings) -> None:
    """A 404 must take the same time for an object of another tenant and for an unknown id."""
    foreign: list[float] = []
    unknown: list[float] = []
    for _ in range(pairs):
        for name, times in ((fixture.ids["response"], foreign), (unknown_id(fixture.ids["response"]), unknown)):
            began = perf_counter()
            await fixture.beta("GET", f"/v1/responses/{name}")
            times.append(perf_counter() - began)
    findings.add_trials(pairs)
    findings.add_figure(Figure("foreign/unknown median", median(foreign) / median(unknown)))
    findings.add_figure(Figure("timing p", _mann_whitney_p(foreign, unknown), minimum=0.001))


def _mann_whitney_p(some: list[float], others: list[float]) -> float:
    """Return the p value of the Mann-Whitney U test: the probability of a difference at least this large if there is
    none.
    """
    ranks = {value: rank for rank, value in enumerate(sorted([*some, *others]), 1)}
    n, m = len(some), len(others)
    u = sum(ranks[value] for value in some) - n * (n + 1) / 2
    spread = (n * m * (n + m + 1) / 12) ** 0.5
    return 2 * (1 - NormalDist().cdf(abs(u - n * m / 2) / spread))
