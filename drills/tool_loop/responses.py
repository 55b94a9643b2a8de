"""Responses with tools under drill, and their verification.

The scenes are a call with a side effect, the same call after an approval, a call that requests an approval, and a call
that waits for its client's output. No effect occurs twice. An acknowledged response exists, ends and does not change. A
call that is reported as completed had its effect. An approved call is executed once, however often the approval is
sent.
"""

import asyncio
from collections.abc import Callable
from typing import Any, Literal

from drills.harness.client import DISCONNECT_ERRORS, Client, Stream
from drills.harness.oracle import Json, output_text, parse_event
from drills.harness.runs import STUCK_SECONDS, Run, verify_replay
from drills.tool_loop.counter_server import Counter

Scene = Literal["call", "approved", "asking", "outputs"]
RESTARTED = "server_restarted"
STOPPING = "service_unavailable"
_FUNCTION = {"type": "function", "name": "f", "parameters": {"type": "object", "properties": {}}}
_TOOL_OUTPUT = "output of the client's tool"
_EXPECTED_REJECTIONS = (400, 404, 409)  # the response does not wait for the output, or already has it


class ToolLoopRun(Run, kw_only=True):
    """`url` is the counter server's URL for this response only."""

    scene: Scene
    url: str
    previous_id: str = ""  # response that requested the approval; `approval_id` is the id of its approval request
    approval_id: str = ""

    def build_tool(self, approval: str) -> Json:
        return {"type": "mcp", "server_label": "counter", "server_url": self.url, "require_approval": approval}

    def build_fields(self) -> Json:
        if self.scene == "outputs":
            return {"tools": [_FUNCTION], "wait_for_tool_outputs": True}
        if self.scene == "approved":
            return {"tools": [self.build_tool("always")], **self.build_approval()}
        return {"tools": [self.build_tool("always" if self.scene == "asking" else "never")]}

    def build_approval(self) -> Json:
        answer = {"type": "mcp_approval_response", "approval_request_id": self.approval_id, "approve": True}
        return {"previous_response_id": self.previous_id, "input": [answer]}


async def prepare(client: Client, loop: ToolLoopRun) -> None:
    """Create the approval request of a run with the scene "approved"."""
    if loop.scene != "approved":
        return
    answer = await client.post({"model": "fake", "input": loop.input, "tools": [loop.build_tool("always")]})
    approval_request = _find_approval_request(answer.json())
    if answer.status != 200 or approval_request is None:
        raise RuntimeError(f"no approval was requested: {answer.status} {answer.body[:300]!r}")
    loop.previous_id, loop.approval_id = answer.json()["id"], approval_request["id"]


async def follow_until(
    client: Client, loop: ToolLoopRun, matches: Callable[[Json], bool], seconds: float = STUCK_SECONDS
) -> Json | None:
    """Follow the stream from the beginning and return the first matching event; None if there is none."""
    try:
        async with asyncio.timeout(seconds):
            while not loop.id:  # noqa: ASYNC110 - it is set by the task that executes the run
                await asyncio.sleep(0.01)
            async with client.open("GET", f"/v1/responses/{loop.id}?stream=true") as stream:
                return await _read_until(stream, matches)
    except (TimeoutError, *DISCONNECT_ERRORS):
        return None


async def _read_until(stream: Stream, matches: Callable[[Json], bool]) -> Json | None:
    while stream.is_event_stream and not stream.done:
        seen = len(stream.frames)
        await stream.read(max_frames=seen + 1)
        for frame in stream.frames[seen:]:
            if matches(found := parse_event(frame)):
                return found
    return None


async def submit_output(client: Client, loop: ToolLoopRun) -> str:
    """Submit the output that the response waits for. Returns a violation or ""."""
    call_event = await follow_until(client, loop, _is_call)
    if call_event is None:
        return ""
    body = {"tool_call_id": call_event["item"]["call_id"], "output": _TOOL_OUTPUT}
    try:
        answer = await client.post(body, f"/v1/responses/{loop.id}/tool_outputs")
    except (TimeoutError, *DISCONNECT_ERRORS):
        return ""
    if answer.status == 200 or answer.status in _EXPECTED_REJECTIONS:
        return ""
    return f"{loop.id}: submitting an output returned {answer.status} {answer.body[:200]!r}"


def _is_call(event: Json) -> bool:
    return bool(event["type"] == "response.output_item.done" and event["item"]["type"] == "function_call")


async def verify_loop(client: Client, loop: ToolLoopRun, counter: Counter) -> list[str]:
    """Verify a run that has ended; returns violations."""
    assert loop.ended is not None
    violations = [*await verify_replay(client, loop), *_verify_status(loop), *_verify_calls(loop, counter)]
    if loop.scene in ("approved", "asking"):
        violations += await _repeat_approval(client, loop, counter)
    return [f"{loop.kind} {loop.id} ({loop.scene}): {sentence}" for sentence in violations]


def _verify_status(loop: ToolLoopRun) -> list[str]:
    assert loop.ended is not None
    status, error = loop.ended["status"], loop.ended["error"] or {}
    allowed_codes = (RESTARTED, STOPPING) if loop.kind == "foreground stream" else (RESTARTED,)
    if status == "completed" or (status == "failed" and error.get("code") in allowed_codes):
        return []
    return [f"it ended as {status} {error}"]


def _verify_calls(loop: ToolLoopRun, counter: Counter) -> list[str]:
    """The reported calls must match the effects that occurred."""
    assert loop.ended is not None
    output = loop.ended["output"]
    calls = [item for item in output if item["type"] == "mcp_call"]
    effects, completed = (
        counter.count_events("counted", loop.nonce),
        sum(call["status"] == "completed" for call in calls),
    )
    violations = []
    if effects > 1:
        violations.append(f"its effect occurred {effects} times")
    if completed > effects:
        violations.append(f"{completed} calls are reported as completed, but {effects} had an effect")
    if len(calls) > 1:
        violations.append(f"it has {len(calls)} calls")
    if effects and not calls and loop.ended["status"] == "completed":
        violations.append("its effect occurred, but it contains no call")
    if loop.scene != "asking" and loop.ended["status"] == "completed" and not output_text(loop.ended):
        violations.append(f"it is completed without text: {output}")
    if loop.scene == "outputs" and loop.ended["status"] == "completed":
        outputs = [item for item in output if item["type"] == "function_call_output"]
        if len(outputs) != 1 or outputs[0]["output"] != _TOOL_OUTPUT:
            violations.append(f"it contains the client's output {len(outputs)} times")
    return violations


async def _repeat_approval(client: Client, loop: ToolLoopRun, counter: Counter) -> list[str]:
    """Send the approval twice more: at most one effect may have occurred afterwards."""
    assert loop.ended is not None
    if loop.scene == "asking":
        approval_request = _find_approval_request(loop.ended)
        if approval_request is None:
            return (
                []
                if loop.ended["status"] == "failed"
                else [f"it ended without an approval request: {loop.ended['output']}"]
            )
        loop.previous_id, loop.approval_id = loop.id, approval_request["id"]
    before = counter.count_events("counted", loop.nonce)
    violations, rejection_code = [], ""
    for _ in range(2):
        answer = await client.post({"model": "fake", "tools": [loop.build_tool("always")], **loop.build_approval()})
        rejection_code = rejection_code or str(answer.error().get("code") or "")
        if answer.status not in (200, 400, 409):
            violations.append(f"a repeated approval was answered with {answer.status} {answer.body[:200]!r}")
    effects = counter.count_events("counted", loop.nonce)
    if effects > 1:
        violations.append(f"one approval caused {effects} effects ({before} before it was repeated)")
    if not effects and loop.scene == "asking":
        violations.append("the approved call was never executed")
    if not rejection_code:
        violations.append("no repeated approval was rejected")
    return violations


def _find_approval_request(response: Json) -> Json | None:
    output: list[dict[str, Any]] = response.get("output") or []
    return next((item for item in output if item["type"] == "mcp_approval_request"), None)
