"""Drill `bombs-twins`: one server on SQLite and one on PostgreSQL give the same answers to inputs that break stores,
and return stored texts unchanged.
"""

import re
from collections.abc import Iterator
from typing import Any

import msgspec

from drills.bombs.bomb import Bomb
from drills.bombs.box import CONFIG
from drills.bombs.numbers import numbers
from drills.bombs.text import TEXTS, literals, texts
from drills.bombs.throw import find_faults, throw
from drills.harness.client import Answer, Client
from drills.harness.findings import Figure, Findings
from drills.harness.process import open_servers
from drills.harness.storage_locations import StorageLocation, open_storage

# Values that differ on every server: ids, times and encrypted content.
_VOLATILE = re.compile(
    rb'"[a-z]+[_-][0-9a-f]{16,}"|"encrypted_content":"[^"]+"'
    rb'|"(?:created|completed|expires)_?[a-z]*":[0-9.]+|req_[0-9a-f]+'
)
_INTEGERS = (2**31, 2**53 + 1, 2**63 - 1, 2**63, -(2**63) - 1, 2**64)

Json = dict[str, Any]


async def twins(step: int, findings: Findings, postgres: StorageLocation | None = None) -> None:
    """Compare the two servers; every `step`-th bomb is sent."""
    with open_storage("sqlite") as sqlite_storage, open_storage(postgres or "postgres") as postgres_storage:
        with (
            open_servers(sqlite_storage, CONFIG, mark_answers=False) as sqlite_servers,
            open_servers(postgres_storage, CONFIG, mark_answers=False) as postgres_servers,
        ):
            pair = (await sqlite_servers.start(), await postgres_servers.start())
            clients = (pair[0].client, pair[1].client)
            rows = [*texts(), *literals("/nowhere/canary"), *numbers()][::step]
            for bomb in rows:
                await _compare_bomb(clients, bomb, findings)
            for name, sequence in _request_sequences():
                await _compare_sequence(clients, name, sequence, findings)
            for process in pair:
                await process.stop()
        for text in (*sqlite_servers.tracebacks, *postgres_servers.tracebacks):
            findings.add_violation(f"a server wrote a traceback:\n{text}")
    findings.add_figure(Figure("rows", len(rows)))


async def _compare_bomb(clients: tuple[Client, Client], bomb: Bomb, findings: Findings) -> None:
    findings.add_trials()
    results = [await throw(client.port, bomb) for client in clients]
    findings.add_violations(f"{bomb.name}: {fault}" for result in results for fault in find_faults(bomb, result))
    if results[0].status != results[1].status or _remove_volatile(results[0].body) != _remove_volatile(results[1].body):
        findings.add_violation(
            f"{bomb.name}: {results[0].status} {results[0].body[:300]!r} and {results[1].body[:300]!r}"
        )


def _request_sequences() -> Iterator[tuple[str, list[tuple[str, str, Any]]]]:
    """Yield sequences that store data and read it back: method, path and body. `@` is the id from the first answer."""
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


async def _compare_sequence(
    clients: tuple[Client, Client], name: str, sequence: list[tuple[str, str, Any]], findings: Findings
) -> None:
    findings.add_trials()
    answers = [await _send_sequence(client, sequence) for client in clients]
    for (method, path, _), one, other in zip(sequence, *answers, strict=True):
        if one.status >= 500 or other.status >= 500:
            findings.add_violation(f"{name}, {method} {path}: {one.status} and {other.status}: {one.body[:200]!r}")
        if one.status != other.status or _remove_volatile(one.body) != _remove_volatile(other.body):
            findings.add_violation(f"{name}, {method} {path}: {one.body[:600]!r} and {other.body[:600]!r}")


async def _send_sequence(client: Client, sequence: list[tuple[str, str, Any]]) -> list[Answer]:
    answers, created_id = [], "none"
    for method, path, body in sequence:
        sent = msgspec.json.decode(msgspec.json.encode(body).replace(b'"@"', b'"%b"' % created_id.encode()))
        answers.append(await client.send(method, path.replace("@", created_id), sent))
        if created_id == "none":
            created_id = str(answers[-1].json().get("id", "none"))
    return answers


def _remove_volatile(body: bytes) -> bytes:
    return _VOLATILE.sub(b"", body)
