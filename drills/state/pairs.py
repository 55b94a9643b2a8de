"""Two servers on one database: what is begun on one is followed, resumed, cancelled and continued on the other."""

import asyncio
from typing import Any

from drills.harness.client import Client
from drills.harness.findings import Findings
from drills.harness.journal import new_nonce
from drills.harness.oracle import event, text_of, whole
from drills.harness.process import servers
from drills.harness.storage_locations import Kind, Place, place

_CONFIG = {"lease_seconds": 5.0, "fake_rate": 50.0, "log_level": "warning"}
_LONG = "Here and there, and there and here. " * 40
_SECONDS = 20.0


async def pairs(kind: Kind | Place, rounds: int, findings: Findings) -> None:
    with place(kind) as where, servers(where, _CONFIG) as processes:
        one, other = await asyncio.gather(processes.start(), processes.start())
        for number in range(rounds):
            here, there = (one.client, other.client) if number % 2 else (other.client, one.client)
            for trial in (_resume, _follow_from, _cancel, _cancel_stream, _continue, _converse, _delete):
                findings.tried()
                await _try(trial, here, there, findings)
        await one.stop()
        await other.stop()
        processes.gone(one)
        processes.gone(other)
    findings.all_violated(f"a server wrote a traceback:\n{text}" for text in processes.tracebacks)


async def _try(trial: Any, here: Client, there: Client, findings: Findings) -> None:
    name = trial.__name__.strip("_")
    try:
        async with asyncio.timeout(_SECONDS):
            if sentence := await trial(here, there):
                findings.violated(f"{name}: {sentence}")
    except (TimeoutError, EOFError, OSError, LookupError, TypeError) as error:
        findings.violated(f"{name}: {error!r}")


def _body(**wishes: Any) -> dict[str, Any]:
    return {"model": "fake", "input": f"{new_nonce()} here and there", **wishes}


async def _resume(here: Client, there: Client) -> str:
    """A stream that is dropped on one server goes on at the other, without a gap and without an event twice."""
    body = _body(background=True, stream=True)
    async with here.open("POST", "/v1/responses", body) as stream:
        await stream.read(most=8)
        stream.hang_up(False)
    response_id, last = event(stream.frames[0])["response"]["id"], len(stream.frames) - 1
    rest = await there.replay(response_id, last)
    everything = [*stream.frames, *rest.frames]
    if whole(everything)["status"] != "completed":
        return f"it ended {whole(everything)['status']}"
    return "" if (await here.replay(response_id)).frames == everything else "the two servers replay it differently"


async def _follow_from(here: Client, there: Client) -> str:
    """Two who follow from the first event, each on another server, are told the same."""
    async with here.open("POST", "/v1/responses", _body(background=True, stream=True)) as stream:
        await stream.read(most=1)
        response_id = event(stream.frames[0])["response"]["id"]
        following = asyncio.create_task(there.replay(response_id))
        await stream.read()
        return "" if (await following).frames == stream.frames else "the follower was told something else"


async def _cancel(here: Client, there: Client) -> str:
    response_id = (await here.post(_body(background=True, input=_LONG))).json()["id"]
    answer = await there.post(None, f"/v1/responses/{response_id}/cancel")
    if answer.status != 200 or answer.json()["status"] != "cancelled":
        return f"{answer.status} {answer.body[:300]!r}"
    seen = await here.get(f"/v1/responses/{response_id}")
    return "" if seen.body == answer.body else f"the first server says {seen.body[:300]!r}"


async def _cancel_stream(here: Client, there: Client) -> str:
    """Whoever follows it on the first server hears of the end that the second one made."""
    async with here.open("POST", "/v1/responses", _body(background=True, stream=True, input=_LONG)) as stream:
        await stream.read(most=6)
        response_id = event(stream.frames[0])["response"]["id"]
        answer = await there.post(None, f"/v1/responses/{response_id}/cancel")
        await stream.read()
    ended = whole(stream.frames)
    if answer.status != 200 or ended != answer.json() or ended["status"] != "cancelled":
        return f"cancel said {answer.status} {answer.body[:200]!r}, the stream {ended['status']}"
    replay = await there.replay(response_id)
    return "" if replay.frames == stream.frames else "the replay differs from what was told"


async def _continue(here: Client, there: Client) -> str:
    first = (await here.post(_body())).json()
    second = (await there.post(_body(previous_response_id=first["id"]))).json()
    third = (await here.post(_body(previous_response_id=second["id"]))).json()
    tokens = [answer["usage"]["input_tokens"] for answer in (first, second, third)]
    return "" if tokens[0] < tokens[1] < tokens[2] else f"the engine saw {tokens} tokens"


async def _converse(here: Client, there: Client) -> str:
    conversation = (await here.post({}, "/v1/conversations")).json()["id"]
    said = []
    for client in (here, there, here, there):
        answer = (await client.post(_body(conversation=conversation))).json()
        said.append(text_of(answer))
    items = (await there.get(f"/v1/conversations/{conversation}/items?order=asc&limit=100")).json()["data"]
    kept = [part["text"] for item in items if item.get("role") == "assistant" for part in item["content"]]
    return "" if kept == said and len(items) == 8 else f"{len(items)} items, {kept}"


async def _delete(here: Client, there: Client) -> str:
    response_id = (await here.post(_body())).json()["id"]
    if (await there.send("DELETE", f"/v1/responses/{response_id}")).status != 200:
        return "it could not be deleted"
    answer = await here.get(f"/v1/responses/{response_id}")
    if answer.status != 404:
        return f"after its deletion the first server says {answer.status}"
    answer = await here.post(_body(previous_response_id=response_id))
    code = answer.error().get("code")
    gone = answer.status == 400 and code == "previous_response_not_found"
    return "" if gone else f"a deleted response is continued with {answer.status} {code}"
