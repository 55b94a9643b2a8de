"""Two servers on one database: responses that were started on one are followed, resumed, cancelled and continued on the
other.
"""

import asyncio
from typing import Any

from drills.harness.client import Client
from drills.harness.findings import Findings
from drills.harness.journal import new_nonce
from drills.harness.oracle import InvalidStream, output_text, parse_event, terminal_response
from drills.harness.process import open_servers
from drills.harness.storage_locations import StorageKind, StorageLocation, open_storage

_CONFIG = {"lease_seconds": 5.0, "fake_rate": 50.0, "log_level": "warning"}
_LONG = "Here and there, and there and here. " * 40
_TIMEOUT_SECONDS = 20.0


async def pairs(kind: StorageKind | StorageLocation, rounds: int, findings: Findings) -> None:
    with open_storage(kind) as storage, open_servers(storage, _CONFIG) as processes:
        one, other = await asyncio.gather(processes.start(), processes.start())
        for number in range(rounds):
            client_a, client_b = (one.client, other.client) if number % 2 else (other.client, one.client)
            for trial in (_resume, _follow, _cancel, _cancel_stream, _continue, _converse, _delete):
                findings.add_trials()
                await _run_trial(trial, client_a, client_b, findings)
        await one.stop()
        await other.stop()
        processes.discard(one)
        processes.discard(other)
    findings.add_violations(f"a server wrote a traceback:\n{text}" for text in processes.tracebacks)


async def _run_trial(trial: Any, client_a: Client, client_b: Client, findings: Findings) -> None:
    name = trial.__name__.strip("_")
    try:
        async with asyncio.timeout(_TIMEOUT_SECONDS):
            if sentence := await trial(client_a, client_b):
                findings.add_violation(f"{name}: {sentence}")
    except (TimeoutError, EOFError, OSError, LookupError, TypeError, InvalidStream) as error:
        findings.add_violation(f"{name}: {error!r}")


def _body(**fields: Any) -> dict[str, Any]:
    return {"model": "fake", "input": f"{new_nonce()} here and there", **fields}


async def _resume(client_a: Client, client_b: Client) -> str:
    """A stream that is dropped on one server is resumed on the other without a gap and without a repeated event."""
    body = _body(background=True, stream=True)
    async with client_a.open("POST", "/v1/responses", body) as stream:
        await stream.read(max_frames=8)
        stream.disconnect(False)
    response_id, last = parse_event(stream.frames[0])["response"]["id"], len(stream.frames) - 1
    remainder = await client_b.replay(response_id, last)
    all_frames = [*stream.frames, *remainder.frames]
    if terminal_response(all_frames)["status"] != "completed":
        return f"it ended as {terminal_response(all_frames)['status']}"
    return "" if (await client_a.replay(response_id)).frames == all_frames else "the two servers replay it differently"


async def _follow(client_a: Client, client_b: Client) -> str:
    """Two clients that follow from the first event on different servers receive the same events."""
    async with client_a.open("POST", "/v1/responses", _body(background=True, stream=True)) as stream:
        await stream.read(max_frames=1)
        response_id = parse_event(stream.frames[0])["response"]["id"]
        follower = asyncio.create_task(client_b.replay(response_id))
        await stream.read()
        return "" if (await follower).frames == stream.frames else "the follower received different events"


async def _cancel(client_a: Client, client_b: Client) -> str:
    response_id = (await client_a.post(_body(background=True, input=_LONG))).json()["id"]
    answer = await client_b.post(None, f"/v1/responses/{response_id}/cancel")
    if answer.status != 200 or answer.json()["status"] != "cancelled":
        return f"{answer.status} {answer.body[:300]!r}"
    seen = await client_a.get(f"/v1/responses/{response_id}")
    return "" if seen.body == answer.body else f"the first server returns {seen.body[:300]!r}"


async def _cancel_stream(client_a: Client, client_b: Client) -> str:
    """A client that follows the response on the first server receives the end that the second one created."""
    async with client_a.open("POST", "/v1/responses", _body(background=True, stream=True, input=_LONG)) as stream:
        await stream.read(max_frames=6)
        response_id = parse_event(stream.frames[0])["response"]["id"]
        answer = await client_b.post(None, f"/v1/responses/{response_id}/cancel")
        await stream.read()
    ended = terminal_response(stream.frames)
    if answer.status != 200 or ended != answer.json() or ended["status"] != "cancelled":
        return f"cancel returned {answer.status} {answer.body[:200]!r}, the stream ended as {ended['status']}"
    replay = await client_b.replay(response_id)
    return "" if replay.frames == stream.frames else "the replay differs from the received events"


async def _continue(client_a: Client, client_b: Client) -> str:
    first = (await client_a.post(_body())).json()
    second = (await client_b.post(_body(previous_response_id=first["id"]))).json()
    third = (await client_a.post(_body(previous_response_id=second["id"]))).json()
    tokens = [answer["usage"]["input_tokens"] for answer in (first, second, third)]
    return "" if tokens[0] < tokens[1] < tokens[2] else f"the prompts had {tokens} tokens"


async def _converse(client_a: Client, client_b: Client) -> str:
    conversation = (await client_a.post({}, "/v1/conversations")).json()["id"]
    texts = []
    for client in (client_a, client_b, client_a, client_b):
        answer = (await client.post(_body(conversation=conversation))).json()
        texts.append(output_text(answer))
    items = (await client_b.get(f"/v1/conversations/{conversation}/items?order=asc&limit=100")).json()["data"]
    stored_texts = [part["text"] for item in items if item.get("role") == "assistant" for part in item["content"]]
    return "" if stored_texts == texts and len(items) == 8 else f"{len(items)} items, {stored_texts}"


async def _delete(client_a: Client, client_b: Client) -> str:
    response_id = (await client_a.post(_body())).json()["id"]
    if (await client_b.send("DELETE", f"/v1/responses/{response_id}")).status != 200:
        return "it could not be deleted"
    answer = await client_a.get(f"/v1/responses/{response_id}")
    if answer.status != 404:
        return f"after its deletion the first server returns {answer.status}"
    answer = await client_a.post(_body(previous_response_id=response_id))
    code = answer.error().get("code")
    is_rejected = answer.status == 400 and code == "previous_response_not_found"
    return "" if is_rejected else f"continuing a deleted response returned {answer.status} {code}"
