"""Responses with tools under drill: a loop with a call that has an effect, the same after a client allowed it, one that
asks to be allowed, and one that waits for its client's output. And the look at each of them afterwards.

An effect is never had twice. What was acknowledged is there, ends, and does not change. A call that says it is done had
its effect. What a client allowed is done once, however often it is said.
"""

import asyncio
from collections.abc import Callable
from typing import Any, Literal

from drills.harness.client import GONE, Client, Stream
from drills.harness.oracle import Json, event, text_of
from drills.harness.runs import STUCK_SECONDS, Run, replayed
from drills.tool_loop.counter_server import Counter

Scene = Literal["call", "approved", "asking", "outputs"]
RESTARTED = "server_restarted"
STOPPING = "service_unavailable"
_FUNCTION = {"type": "function", "name": "f", "parameters": {"type": "object", "properties": {}}}
_GIVEN = "what the client's tool gave"
_EARLY = (400, 404, 409)  # it does not wait, or has it already


class Loop(Run, kw_only=True):
    """`url` is the counter's, for this response alone."""

    scene: Scene
    url: str
    previous: str = ""  # the response that asked, and the id of what it asked
    request: str = ""

    def tool(self, approval: str) -> Json:
        return {"type": "mcp", "server_label": "counter", "server_url": self.url, "require_approval": approval}

    def wishes(self) -> Json:
        if self.scene == "outputs":
            return {"tools": [_FUNCTION], "wait_for_tool_outputs": True}
        if self.scene == "approved":
            return {"tools": [self.tool("always")], **self.approval()}
        return {"tools": [self.tool("always" if self.scene == "asking" else "never")]}

    def approval(self) -> Json:
        answer = {"type": "mcp_approval_response", "approval_request_id": self.request, "approve": True}
        return {"previous_response_id": self.previous, "input": [answer]}


async def prepare(client: Client, loop: Loop) -> None:
    """Let it be asked for what is to be allowed."""
    if loop.scene != "approved":
        return
    answer = await client.post({"model": "fake", "input": loop.input, "tools": [loop.tool("always")]})
    asked = _request(answer.json())
    if answer.status != 200 or asked is None:
        raise RuntimeError(f"nothing was asked: {answer.status} {answer.body[:300]!r}")
    loop.previous, loop.request = answer.json()["id"], asked["id"]


async def follow(
    client: Client, loop: Loop, until: Callable[[Json], bool], seconds: float = STUCK_SECONDS
) -> Json | None:
    """The first event of that kind, as somebody sees it who follows from the beginning; None if none comes."""
    try:
        async with asyncio.timeout(seconds):
            while not loop.id:  # noqa: ASYNC110 - whoever asks sets it, and knows nothing of us
                await asyncio.sleep(0.01)
            async with client.open("GET", f"/v1/responses/{loop.id}?stream=true") as stream:
                return await _first(stream, until)
    except (TimeoutError, *GONE):
        return None


async def _first(stream: Stream, until: Callable[[Json], bool]) -> Json | None:
    while stream.streams and not stream.done:
        seen = len(stream.frames)
        await stream.read(most=seen + 1)
        for frame in stream.frames[seen:]:
            if until(found := event(frame)):
                return found
    return None


async def give(client: Client, loop: Loop) -> str:
    """The output that it waits for, as its client's tool would. What is wrong with the answer, or ""."""
    called = await follow(client, loop, _is_call)
    if called is None:
        return ""
    body = {"tool_call_id": called["item"]["call_id"], "output": _GIVEN}
    try:
        answer = await client.post(body, f"/v1/responses/{loop.id}/tool_outputs")
    except (TimeoutError, *GONE):
        return ""
    if answer.status == 200 or answer.status in _EARLY:
        return ""
    return f"{loop.id}: an output was answered with {answer.status} {answer.body[:200]!r}"


def _is_call(one: Json) -> bool:
    return bool(one["type"] == "response.output_item.done" and one["item"]["type"] == "function_call")


async def look(client: Client, loop: Loop, counter: Counter) -> list[str]:
    """A loop that has ended."""
    assert loop.ended is not None
    wrong = [*await replayed(client, loop), *_ended(loop), *_done(loop, counter)]
    if loop.scene in ("approved", "asking"):
        wrong += await _allowed_again(client, loop, counter)
    return [f"{loop.kind} {loop.id} ({loop.scene}): {sentence}" for sentence in wrong]


def _ended(loop: Loop) -> list[str]:
    assert loop.ended is not None
    status, error = loop.ended["status"], loop.ended["error"] or {}
    told = (RESTARTED, STOPPING) if loop.kind == "foreground stream" else (RESTARTED,)
    if status == "completed" or (status == "failed" and error.get("code") in told):
        return []
    return [f"it ended {status} {error}"]


def _done(loop: Loop, counter: Counter) -> list[str]:
    """What it says of its calls is what happened."""
    assert loop.ended is not None
    output = loop.ended["output"]
    calls = [item for item in output if item["type"] == "mcp_call"]
    effects, told = counter.times("counted", loop.nonce), sum(call["status"] == "completed" for call in calls)
    wrong = []
    if effects > 1:
        wrong.append(f"its effect was had {effects} times")
    if told > effects:
        wrong.append(f"{told} calls say that they are done, and {effects} had an effect")
    if len(calls) > 1:
        wrong.append(f"it has {len(calls)} calls")
    if effects and not calls and loop.ended["status"] == "completed":
        wrong.append("it had an effect and has no call")
    if loop.scene != "asking" and loop.ended["status"] == "completed" and not text_of(loop.ended):
        wrong.append(f"it is completed and says nothing: {output}")
    if loop.scene == "outputs" and loop.ended["status"] == "completed":
        given = [item for item in output if item["type"] == "function_call_output"]
        if len(given) != 1 or given[0]["output"] != _GIVEN:
            wrong.append(f"the client's output is in it {len(given)} times")
    return wrong


async def _allowed_again(client: Client, loop: Loop, counter: Counter) -> list[str]:
    """Say yes twice more: there is one effect afterwards, or none if nobody knows what became of the first one."""
    assert loop.ended is not None
    if loop.scene == "asking":
        asked = _request(loop.ended)
        if asked is None:
            return (
                []
                if loop.ended["status"] == "failed"
                else [f"it has ended well and did not ask: {loop.ended['output']}"]
            )
        loop.previous, loop.request = loop.id, asked["id"]
    before = counter.times("counted", loop.nonce)
    wrong, refused = [], ""
    for _ in range(2):
        answer = await client.post({"model": "fake", "tools": [loop.tool("always")], **loop.approval()})
        refused = refused or str(answer.error().get("code") or "")
        if answer.status not in (200, 400, 409):
            wrong.append(f"an approval that is repeated was answered with {answer.status} {answer.body[:200]!r}")
    effects = counter.times("counted", loop.nonce)
    if effects > 1:
        wrong.append(f"what was allowed once was done {effects} times ({before} before it was said again)")
    if not effects and loop.scene == "asking":
        wrong.append("what was asked for was allowed and never done")
    if not refused:
        wrong.append("the last approval was not refused")
    return wrong


def _request(response: Json) -> Json | None:
    output: list[dict[str, Any]] = response.get("output") or []
    return next((item for item in output if item["type"] == "mcp_approval_request"), None)
