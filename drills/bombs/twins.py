"""Two servers, one on SQLite and one on PostgreSQL: what breaks a store is answered by both alike, and what is kept
comes back as it was."""

import re
from collections.abc import Iterator
from typing import Any

import msgspec

from drills.bombs.bomb import Bomb
from drills.bombs.box import CONFIG
from drills.bombs.numbers import numbers
from drills.bombs.text import TEXTS, literals, texts
from drills.bombs.throw import faults, throw
from drills.harness.client import Answer, Client
from drills.harness.findings import Figure, Findings
from drills.harness.process import servers
from drills.harness.storage_locations import Place, place

# What is another's every time: ids, times, and what was sealed.
_OWN = re.compile(
    rb'"[a-z]+[_-][0-9a-f]{16,}"|"encrypted_content":"[^"]+"'
    rb'|"(?:created|completed|expires)_?[a-z]*":[0-9.]+|req_[0-9a-f]+'
)
_INTEGERS = (2**31, 2**53 + 1, 2**63 - 1, 2**63, -(2**63) - 1, 2**64)

Json = dict[str, Any]


async def twins(step: int, findings: Findings, postgres: Place | None = None) -> None:
    """`step`: each so many-th is thrown."""
    with place("sqlite") as one, place(postgres or "postgres") as other:
        with servers(one, CONFIG, marks=False) as ours, servers(other, CONFIG, marks=False) as theirs:
            pair = (await ours.start(), await theirs.start())
            clients = (pair[0].client, pair[1].client)
            rows = [*texts(), *literals("/nowhere/canary"), *numbers()][::step]
            for bomb in rows:
                await _throw(clients, bomb, findings)
            for name, talk in _talks():
                await _kept(clients, name, talk, findings)
            for process in pair:
                await process.stop()
        for text in (*ours.tracebacks, *theirs.tracebacks):
            findings.violated(f"a server wrote a traceback:\n{text}")
    findings.figure(Figure("rows", len(rows)))


async def _throw(clients: tuple[Client, Client], bomb: Bomb, findings: Findings) -> None:
    findings.tried()
    both = [await throw(client.port, bomb) for client in clients]
    findings.all_violated(f"{bomb.name}: {fault}" for thrown in both for fault in faults(bomb, thrown))
    if both[0].status != both[1].status or _bare(both[0].body) != _bare(both[1].body):
        findings.violated(f"{bomb.name}: {both[0].status} {both[0].body[:300]!r} and {both[1].body[:300]!r}")


def _talks() -> Iterator[tuple[str, list[tuple[str, str, Any]]]]:
    """Things that are kept and asked for again: method, path and body; `@` is the id that the first one gave."""
    for text in TEXTS:
        item = {"role": "user", "content": text}
        yield (
            f"a response to {text!r:.20}",
            [
                ("POST", "/v1/responses", {"model": "fake", "input": text, "instructions": text}),
                ("GET", "/v1/responses/@", None),
                ("GET", "/v1/responses/@/input_items", None),
                ("GET", "/v1/responses/@?stream=true", None),
                ("POST", "/v1/responses", {"model": "fake", "input": "more", "previous_response_id": "@"}),
            ],
        )
        yield (
            f"a conversation about {text!r:.20}",
            [
                ("POST", "/v1/conversations", {"items": [item]}),
                ("POST", "/v1/conversations/@/items", {"items": [item, _output(text)]}),
                ("POST", "/v1/responses", {"model": "fake", "input": text, "conversation": "@"}),
                ("GET", "/v1/conversations/@/items?order=asc", None),
                ("POST", "/v1/conversations/@", {"metadata": {"k": text}}),
                ("GET", "/v1/conversations/@", None),
            ],
        )
    for number in _INTEGERS:
        yield (
            f"the number {number}",
            [
                (
                    "POST",
                    "/v1/responses",
                    {"model": "fake", "input": "x", "metadata": {"k": str(number)}, "seed": number},
                ),
                ("POST", "/v1/conversations", {"metadata": {"k": number}}),
                ("GET", f"/v1/responses?limit={number}", None),
                ("GET", f"/v1/responses/resp_{'0' * 32}?stream=true&starting_after={number}", None),
            ],
        )


def _output(text: str) -> Json:
    return {"type": "function_call_output", "call_id": "c", "output": text}


async def _kept(
    clients: tuple[Client, Client], name: str, talk: list[tuple[str, str, Any]], findings: Findings
) -> None:
    findings.tried()
    both = [await _talked(client, talk) for client in clients]
    for (method, path, _), one, other in zip(talk, *both, strict=True):
        if one.status >= 500 or other.status >= 500:
            findings.violated(f"{name}, {method} {path}: {one.status} and {other.status}: {one.body[:200]!r}")
        if one.status != other.status or _bare(one.body) != _bare(other.body):
            findings.violated(f"{name}, {method} {path}: {one.body[:600]!r} and {other.body[:600]!r}")


async def _talked(client: Client, talk: list[tuple[str, str, Any]]) -> list[Answer]:
    found, made = [], "none"
    for method, path, body in talk:
        sent = msgspec.json.decode(msgspec.json.encode(body).replace(b'"@"', b'"%b"' % made.encode()))
        found.append(await client.send(method, path.replace("@", made), sent))
        if made == "none":
            made = str(found[-1].json().get("id", "none"))
    return found


def _bare(body: bytes) -> bytes:
    return _OWN.sub(b"", body)
