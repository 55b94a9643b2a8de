"""Requests without a valid key, to every route and in all variations that have bypassed other servers.

None may be accepted, none may cause an error of the server, and all rejections must look the same.
"""

import asyncio
import base64
import time
from collections.abc import Iterator
from hashlib import sha256

from drills.harness.findings import Figure, Findings
from drills.harness.openapi_paths import list_finite
from drills.tenants.fixtures import TenantFixture, bearer
from drills.tenants.raw_requests import Header, Reply, open_websocket, render_head, render_upgrade

REJECTIONS = {0, 400, 401, 403, 405, 413, 414, 431, 501, 505}
_UNAUTHORIZED = 401
_LACKS_SCOPE = 403
_OK = 200
_MAX_REVOCATION_SECONDS, _GIVE_UP_SECONDS, _PAUSE_SECONDS = 5.0, 30.0, 0.05
_UNSUPPORTED_HTTP = {501, 505}  # accepted as rejections of requests that HTTP/1.1 does not support

PATHS = [
    "//v1/models", "/v1//models", "/v1/models/", "/V1/models", "/v1/MODELS", "/v1/../v1/models", "/health/../v1/models",
    "/v1/models/..%2f..%2fhealth", "/health/", "//health", "/Health", "/health/..", "/v1/../health", "/v1/health",
    "/health;x", "/%68ealth", "/health%00", "/health%2f..%2fv1%2fmodels", "/healthz", "/%2fv1/models", "/v1%2fmodels",
    "/v1/models%00", "/v1/models;/health", "/v1/models%3f/health", "/v1/models?/health", "/v1/models?api_key=KEY",
    "/v1/models?key=KEY", "/v1/models?access_token=KEY", "/v1/models?authorization=Bearer%20KEY", "http://x/health",
    "http://127.0.0.1/v1/models", "/.//v1/models", "/v1/models#/health", "/v1/./models", "/ready/", "/version/x",
    "*", "/metrics", "/docs", "/openapi.json", "/v3/models", "/models", "/responses", "/v1/responses?stream=true",
]  # fmt: skip


async def check_authentication(fixture: TenantFixture, step: int, findings: Findings) -> None:
    """Try every `step`-th variation at every protected route, and all variations of paths and WebSocket handshakes."""
    paths = (await fixture.beta("GET", "/openapi.json")).json()["paths"]
    routes = [(method.upper(), path) for path, methods in paths.items() for method in methods]
    protected = [(method, path) for method, path in routes if path not in ("/health", "/ready", "/version")]
    finite = dict(list_finite(paths))
    unknown = await fixture.raw_client.request("GET", "/v1/models")
    count = 0
    for method, path in protected:
        if path in finite:
            await _expect_acceptance(fixture, method, path, findings)
        for name, headers in [*unauthenticated_headers(fixture)][::step]:
            await _expect_rejection(
                fixture, f"{name} at {method} {path}", _render_request(fixture, method, path, headers), findings
            )
            count += 1
    for path in PATHS:
        for method in ("GET", "POST", "OPTIONS", "HEAD"):
            target = path.replace("KEY", fixture.keys.alpha)
            await _expect_rejection(
                fixture,
                f"{method} {path}",
                _render_request(fixture, method, target, [fixture.raw_client.host]),
                findings,
            )
    for name, headers in unauthenticated_headers(fixture):
        await _expect_rejection(fixture, f"{name} on a WebSocket", render_upgrade(headers), findings)
        await _expect_same_answer(fixture, name, headers, unknown, findings)
    await _check_claims(fixture, findings)
    await _check_scopes(fixture, findings)
    await _check_revocation(fixture, findings)
    findings.add_figure(Figure("routes", len(protected)))
    findings.add_figure(Figure("disguises", len([*unauthenticated_headers(fixture)]) + len(PATHS)))


def unauthenticated_headers(fixture: TenantFixture) -> Iterator[tuple[str, list[Header]]]:
    """Yield headers without a valid key, or with a valid key in the wrong header."""
    host, keys = fixture.raw_client.host, fixture.keys
    yield from ((name, [host, *headers]) for name, headers in _invalid_keys(keys.alpha, keys.beta))
    yield "revoked key", [host, bearer(keys.revoked)]
    yield "expired key", [host, bearer(keys.expired)]
    for name, value in _misplaced_credentials(keys.alpha):
        yield f"{name.decode()}: {value[:20].decode('latin-1')}", [host, (name, value)]
    for host_value in (
        b"x/health?",
        b"127.0.0.1/health",
        b"x#",
        b"a@b",
        b"",
        b"localhost@evil.example",
        b"evil.example",
    ):
        yield f"Host: {host_value.decode()}", [(b"Host", host_value)]
    yield "two hosts", [host, (b"Host", b"evil.example")]
    yield "no host", []


def _invalid_keys(alpha: str, beta: str) -> Iterator[tuple[str, list[Header]]]:
    right, other = bearer(alpha), bearer("wrong")
    head, _, secret = alpha.rpartition("_")
    digest = sha256(alpha.encode()).hexdigest().encode()
    yield "no key", []
    yield "two keys", [right, other]
    yield "the same key twice", [right, right]
    yield "valid keys of two tenants", [right, (b"X-Api-Key", beta.encode())]
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


def _misplaced_credentials(alpha: str) -> Iterator[Header]:
    """Yield headers in which no key is accepted, and headers that other servers trust in place of a key."""
    key = alpha.encode()
    yield from (
        (b"X-Api-Key", b"Bearer " + key), (b"Proxy-Authorization", b"Bearer " + key), (b"Cookie", b"api_key=" + key),
        (b"Api-Key", key), (b"X-Auth-Token", key), (b"Sec-WebSocket-Protocol", b"api-key." + key),
        (b"Sec-WebSocket-Protocol", b"openai-insecure-api-key." + key[:-1]),
        (b"X-Original-URL", b"/health"), (b"X-Rewrite-URL", b"/health"), (b"X-Forwarded-Prefix", b"/health"),
        (b"X-Forwarded-Host", b"127.0.0.1"), (b"X-Forwarded-For", b"127.0.0.1"), (b"Forwarded", b"for=127.0.0.1"),
        (b"X-Real-IP", b"127.0.0.1"), (b"X-Forwarded-User", b"alpha"), (b"X-Tenant", b"alpha"),
        (b"Remote-User", b"alpha"),
        (b"X-HTTP-Method-Override", b"OPTIONS"), (b"Access-Control-Request-Method", b"GET"),
        (b"Origin", b"http://127.0.0.1"), (b"Referer", b"http://127.0.0.1/health"), (b"Upgrade", b"h2c"),
    )  # fmt: skip


def _render_request(fixture: TenantFixture, method: str, path: str, headers: list[Header]) -> bytes:
    body = b"{}" if method == "POST" else b""
    own_headers = [
        (b"Connection", b"close"),
        (b"Content-Type", b"application/json"),
        (b"Content-Length", b"%d" % len(body)),
    ]
    return render_head(f"{method} {path} HTTP/1.1".encode(), [*headers, *own_headers]) + body


async def _expect_rejection(fixture: TenantFixture, attempt: str, request: bytes, findings: Findings) -> None:
    reply = await fixture.raw_client.send(request)
    findings.add_trials()
    if reply.status >= 500 and reply.status not in _UNSUPPORTED_HTTP:
        findings.add_violation(f"{attempt}: {reply.status} before authentication")
    elif reply.status not in REJECTIONS:
        findings.add_violation(f"{attempt} is accepted: {reply.status} {reply.body[:200]!r}")


async def _expect_acceptance(fixture: TenantFixture, method: str, path: str, findings: Findings) -> None:
    """Send the same request with a valid key: otherwise its rejection would prove nothing."""
    headers = [fixture.raw_client.host, bearer(fixture.keys.beta)]
    reply = await fixture.raw_client.send(_render_request(fixture, method, path, headers))
    if reply.status == _LACKS_SCOPE:
        headers = [fixture.raw_client.host, bearer(fixture.keys.admin)]
        reply = await fixture.raw_client.send(_render_request(fixture, method, path, headers))
    if reply.status in (0, _UNAUTHORIZED, _LACKS_SCOPE):
        findings.add_violation(f"{method} {path} is rejected with a valid key: {reply.status}")


async def _expect_same_answer(
    fixture: TenantFixture, name: str, headers: list[Header], unknown: Reply, findings: Findings
) -> None:
    """All invalid keys must get the same answer."""
    reply = await fixture.raw_client.send(_render_request(fixture, "GET", "/v1/models", headers))
    if reply.status == _UNAUTHORIZED and reply.body != unknown.body:
        findings.add_violation(f"{name} gets a different answer: {reply.body[:200]!r}")


async def _check_claims(fixture: TenantFixture, findings: Findings) -> None:
    """Headers that claim another tenant must have no effect beside a valid key."""
    names = (b"X-Tenant", b"X-Tenant-Id", b"OpenAI-Organization", b"OpenAI-Project", b"X-Forwarded-User", b"X-User")
    for name in names:
        for method, path in (
            ("GET", f"/v1/responses/{fixture.ids['response']}"),
            ("DELETE", "/v1/conversations/{conv}"),
        ):
            target = path.replace("{conv}", fixture.ids["conversation"])
            reply = await fixture.beta(method, target, None, (name, b"alpha"))
            findings.add_trials()
            if reply.status != 404:
                findings.add_violation(f"beta is treated as alpha because of {name.decode()}: {reply.status}")


async def _check_revocation(fixture: TenantFixture, findings: Findings) -> None:
    """A revoked key must be rejected soon, and on an open WebSocket with the next message."""
    key, revoke = await fixture.add_key()
    if (await fixture.raw_client.request("GET", "/v1/models", bearer(key))).status != _OK:
        findings.add_violation("a new key is not accepted immediately")
    async with open_websocket(fixture.raw_client, bearer(key)) as connection:
        await revoke()
        began = time.monotonic()
        while time.monotonic() - began < _GIVE_UP_SECONDS:
            if (await fixture.raw_client.request("GET", "/v1/models", bearer(key))).status == _UNAUTHORIZED:
                break
            await asyncio.sleep(_PAUSE_SECONDS)
        findings.add_trials()
        findings.add_figure(Figure("seconds to be revoked", time.monotonic() - began, maximum=_MAX_REVOCATION_SECONDS))
        messages = await connection.request({"type": "response.create", "model": "fake", "input": "hi"})
        if b"invalid_api_key" not in messages[-1]:
            findings.add_violation(f"a revoked key is still accepted on its WebSocket: {messages[-1][:200]!r}")


async def _check_scopes(fixture: TenantFixture, findings: Findings) -> None:
    for key, path, status in (
        (fixture.keys.beta, "/metrics", 403),
        (fixture.keys.admin, "/metrics", 200),
        (fixture.keys.admin, "/v1/models", 403),
        (fixture.keys.admin, "/v1/responses", 403),
    ):
        reply = await fixture.raw_client.request("GET", path, bearer(key))
        findings.add_trials()
        if reply.status != status:
            findings.add_violation(f"{path} answers {reply.status} to a key whose scope requires {status}")
