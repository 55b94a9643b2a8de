"""Knocks without a good key: at every route, in every disguise that helped somewhere once. None may come in, none may
break anything, and all look alike from outside."""

import asyncio
import base64
import time
from collections.abc import Iterator
from hashlib import sha256

from drills.harness.findings import Figure, Findings
from drills.tenants.fixtures import World, bearer
from drills.tenants.raw_requests import Header, Reply, as_upgrade, talking, written

REFUSALS = {0, 400, 401, 403, 405, 413, 414, 431, 501, 505}
_PLAIN = 401
_LACKS_SCOPE = 403
_GOOD = 200
_SOON, _LONGEST, _PAUSE = 5.0, 30.0, 0.05  # seconds
_NOT_OURS = {501, 505}  # what HTTP itself has no word for may be refused so

PATHS = [
    "//v1/models", "/v1//models", "/v1/models/", "/V1/models", "/v1/MODELS", "/v1/../v1/models", "/health/../v1/models",
    "/v1/models/..%2f..%2fhealth", "/health/", "//health", "/Health", "/health/..", "/v1/../health", "/v1/health",
    "/health;x", "/%68ealth", "/health%00", "/health%2f..%2fv1%2fmodels", "/healthz", "/%2fv1/models", "/v1%2fmodels",
    "/v1/models%00", "/v1/models;/health", "/v1/models%3f/health", "/v1/models?/health", "/v1/models?api_key=KEY",
    "/v1/models?key=KEY", "/v1/models?access_token=KEY", "/v1/models?authorization=Bearer%20KEY", "http://x/health",
    "http://127.0.0.1/v1/models", "/.//v1/models", "/v1/models#/health", "/v1/./models", "/ready/", "/version/x",
    "*", "/metrics", "/docs", "/openapi.json", "/v3/models", "/models", "/responses", "/v1/responses?stream=true",
]  # fmt: skip


async def edge(world: World, step: int, findings: Findings) -> None:
    paths = (await world.beta("GET", "/openapi.json")).json()["paths"]
    routes = [(method.upper(), path) for path, methods in paths.items() for method in methods]
    closed = [(method, path) for method, path in routes if path not in ("/health", "/ready", "/version")]
    unknown = await world.knocking.ask("GET", "/v1/models")
    count = 0
    for method, path in closed:
        await _let_in(world, method, path, findings)
        for name, headers in [*disguises(world)][::step]:
            await _kept_out(world, f"{name} at {method} {path}", _request(world, method, path, headers), findings)
            count += 1
    for path in PATHS:
        for method in ("GET", "POST", "OPTIONS", "HEAD"):
            where = path.replace("KEY", world.keys.alpha)
            await _kept_out(world, f"{method} {path}", _request(world, method, where, [world.knocking.host]), findings)
    for name, headers in disguises(world):
        await _kept_out(world, f"{name} on a WebSocket", as_upgrade(headers), findings)
        await _alike(world, name, headers, unknown, findings)
    await _claims(world, findings)
    await _scopes(world, findings)
    await _revocation(world, findings)
    findings.figure(Figure("routes", len(closed)))
    findings.figure(Figure("disguises", len([*disguises(world)]) + len(PATHS)))


def disguises(world: World) -> Iterator[tuple[str, list[Header]]]:
    """Headers without a good key, or with one where none is to be."""
    host, keys = world.knocking.host, world.keys
    yield from ((name, [host, *headers]) for name, headers in _keys(keys.alpha, keys.beta))
    yield "a revoked key", [host, bearer(keys.revoked)]
    yield "an expired key", [host, bearer(keys.expired)]
    for name, value in _elsewhere(keys.alpha):
        yield f"{name.decode()}: {value[:20].decode('latin-1')}", [host, (name, value)]
    for odd in (b"x/health?", b"127.0.0.1/health", b"x#", b"a@b", b"", b"localhost@evil.example", b"evil.example"):
        yield f"the host {odd.decode()}", [(b"Host", odd)]
    yield "two hosts", [host, (b"Host", b"evil.example")]
    yield "no host", []


def _keys(alpha: str, beta: str) -> Iterator[tuple[str, list[Header]]]:
    right, other = bearer(alpha), bearer("wrong")
    head, _, secret = alpha.rpartition("_")
    digest = sha256(alpha.encode()).hexdigest().encode()
    yield "nothing", []
    yield "two keys", [right, other]
    yield "the same key twice", [right, right]
    yield "two good keys of two tenants", [right, (b"X-Api-Key", beta.encode())]
    for value in (
        b"", b"Bearer", b"Bearer ", b"Bearer \xff\xfe", b"Bearer null", b"Bearer EMPTY", b"Bearer ' OR '1'='1",
        b"Bearer " + alpha[:-1].encode(), b"Bearer " + alpha.encode() + b"0", b"Bearer " + alpha.upper().encode(),
        b"Bearer  " + alpha.encode(), b"Bearer\t" + alpha.encode(), b"Basic " + alpha.encode(), alpha.encode(),
        b"Basic " + base64.b64encode(f"{alpha}:".encode()), b"Bearer " + f"{head}_{'0' * len(secret)}".encode(),
        b"Bearer " + f"{head}_{beta.rpartition('_')[2]}".encode(), b"Bearer " + digest, b"Bearer " + alpha[1:].encode(),
        b"Bearer " + secret.encode(), b"Bearer key_" + head[3:].encode(), b"Bearer " + b"x" * 60_000,
        b"Bearer eyJhbGciOiJub25lIn0.eyJzdWIiOiJhbHBoYSJ9.", b"Token " + alpha.encode(),
        b"Bearer " + f"{alpha},{beta}".encode(), b"Digest username=alpha", b'Bearer "' + alpha.encode() + b'"',
    ):  # fmt: skip
        yield f"Authorization: {value[:30].decode('latin-1')}", [(b"Authorization", value)]


def _elsewhere(alpha: str) -> Iterator[Header]:
    """Where no key is looked for, and what others believe in place of one."""
    key = alpha.encode()
    yield from (
        (b"X-Api-Key", b"Bearer " + key), (b"Proxy-Authorization", b"Bearer " + key), (b"Cookie", b"api_key=" + key),
        (b"Api-Key", key), (b"X-Auth-Token", key), (b"Sec-WebSocket-Protocol", b"openai-insecure-api-key." + key),
        (b"X-Original-URL", b"/health"), (b"X-Rewrite-URL", b"/health"), (b"X-Forwarded-Prefix", b"/health"),
        (b"X-Forwarded-Host", b"127.0.0.1"), (b"X-Forwarded-For", b"127.0.0.1"), (b"Forwarded", b"for=127.0.0.1"),
        (b"X-Real-IP", b"127.0.0.1"), (b"X-Forwarded-User", b"alpha"), (b"X-Tenant", b"alpha"),
        (b"Remote-User", b"alpha"),
        (b"X-HTTP-Method-Override", b"OPTIONS"), (b"Access-Control-Request-Method", b"GET"),
        (b"Origin", b"http://127.0.0.1"), (b"Referer", b"http://127.0.0.1/health"), (b"Upgrade", b"h2c"),
    )  # fmt: skip


def _request(world: World, method: str, path: str, headers: list[Header]) -> bytes:
    body = b"{}" if method == "POST" else b""
    own = [(b"Connection", b"close"), (b"Content-Type", b"application/json"), (b"Content-Length", b"%d" % len(body))]
    return written(f"{method} {path} HTTP/1.1".encode(), [*headers, *own]) + body


async def _kept_out(world: World, what: str, request: bytes, findings: Findings) -> None:
    reply = await world.knocking.send(request)
    findings.tried()
    if reply.status >= 500 and reply.status not in _NOT_OURS:
        findings.violated(f"{what}: {reply.status}, before anybody was known")
    elif reply.status not in REFUSALS:
        findings.violated(f"{what} comes in: {reply.status} {reply.body[:200]!r}")


async def _let_in(world: World, method: str, path: str, findings: Findings) -> None:
    """The same with a key: else nothing was shown."""
    headers = [world.knocking.host, bearer(world.keys.beta)]
    reply = await world.knocking.send(_request(world, method, path, headers))
    if reply.status == _LACKS_SCOPE:
        headers = [world.knocking.host, bearer(world.keys.admin)]
        reply = await world.knocking.send(_request(world, method, path, headers))
    if reply.status in (0, _PLAIN, _LACKS_SCOPE):
        findings.violated(f"{method} {path} is refused with a good key: {reply.status}")


async def _alike(world: World, name: str, headers: list[Header], unknown: Reply, findings: Findings) -> None:
    """Whatever is wrong with a key, from outside it is one thing."""
    reply = await world.knocking.send(_request(world, "GET", "/v1/models", headers))
    if reply.status == _PLAIN and reply.body != unknown.body:
        findings.violated(f"{name} is told apart: {reply.body[:200]!r}")


async def _claims(world: World, findings: Findings) -> None:
    """A good key, and headers that claim to be somebody else."""
    names = (b"X-Tenant", b"X-Tenant-Id", b"OpenAI-Organization", b"OpenAI-Project", b"X-Forwarded-User", b"X-User")
    for name in names:
        for method, path in (("GET", f"/v1/responses/{world.ids['response']}"), ("DELETE", "/v1/conversations/{conv}")):
            where = path.replace("{conv}", world.ids["conversation"])
            reply = await world.beta(method, where, None, (name, b"alpha"))
            findings.tried()
            if reply.status != 404:
                findings.violated(f"beta is taken for alpha by {name.decode()}: {reply.status}")


async def _revocation(world: World, findings: Findings) -> None:
    """A key that was good is none, soon, and on an open WebSocket with the next message."""
    key, revoke = await world.another_key()
    if (await world.knocking.ask("GET", "/v1/models", bearer(key))).status != _GOOD:
        findings.violated("a new key is not good at once")
    async with talking(world.knocking, bearer(key)) as talk:
        await revoke()
        began = time.monotonic()
        while time.monotonic() - began < _LONGEST:
            if (await world.knocking.ask("GET", "/v1/models", bearer(key))).status == _PLAIN:
                break
            await asyncio.sleep(_PAUSE)
        findings.tried()
        findings.figure(Figure("seconds to be revoked", time.monotonic() - began, most=_SOON))
        told = await talk.ask({"type": "response.create", "model": "fake", "input": "hi"})
        if b"invalid_api_key" not in told[-1]:
            findings.violated(f"a revoked key goes on on its WebSocket: {told[-1][:200]!r}")


async def _scopes(world: World, findings: Findings) -> None:
    for key, path, status in (
        (world.keys.beta, "/metrics", 403),
        (world.keys.admin, "/metrics", 200),
        (world.keys.admin, "/v1/models", 403),
        (world.keys.admin, "/v1/responses", 403),
    ):
        reply = await world.knocking.ask("GET", path, bearer(key))
        findings.tried()
        if reply.status != status:
            findings.violated(f"{path} answers {reply.status} to a key whose scope makes it {status}")
