"""One client that uses all stored features and records the answers, so that they can be compared with the final
state.
"""

import asyncio
import time
from typing import Any

import msgspec

from drills.harness.client import DISCONNECT_ERRORS, Answer, Client, Stream
from drills.harness.journal import new_nonce
from drills.harness.oracle import ENDED, InvalidStream, Json, parse_event, terminal_response

STEP_SECONDS = 10.0
SETTLE_SECONDS = 10.0
_ALLOWED = (200, 503)  # a 400 occurs if a preceding step failed


class Scenario:
    """`violations` holds those observed during `play`; `verify` checks the final state."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._responses: dict[str, Json | None] = {}  # reported ids, with their end if it was reported
        self._deleted: set[str] = set()
        self._doubtful: set[str] = set()  # deletions without a result
        self.violations: list[str] = []

    async def play(self) -> None:
        steps = (
            self._create_and_get,
            self._stream_in_foreground,
            self._run_in_background,
            self._stream_in_background,
            self._continue_chain,
            self._use_conversation,
            self._cancel,
            self._disconnect,
            self._delete,
            self._repeat_with_key,
        )
        for step in steps:
            try:
                async with asyncio.timeout(STEP_SECONDS):
                    await step()
            except TimeoutError:
                self.violations.append(f"{step.__name__.strip('_')} timed out")
            except DISCONNECT_ERRORS as error:
                self.violations.append(f"{step.__name__.strip('_')} was disconnected: {error!r}")

    # ---- steps

    async def _create_and_get(self) -> None:
        response = await self._create()
        if response:
            await self._send("GET", f"/v1/responses/{response['id']}")
            await self._send("GET", f"/v1/responses/{response['id']}/input_items")

    async def _stream_in_foreground(self) -> None:
        await self._create_stream("thinks first")

    async def _run_in_background(self) -> None:
        if response := await self._create(background=True):
            await self._poll(response["id"])

    async def _stream_in_background(self) -> None:
        if response_id := await self._create_stream("says it", background=True):
            self._record_stream(await self._client.replay(response_id, 2), 3)

    async def _continue_chain(self) -> None:
        previous: dict[str, Any] = {}
        for stream in (False, True, False):
            if stream:
                response_id = await self._create_stream("says it", **previous)
            else:
                response_id = (await self._create(**previous) or {}).get("id", "")
            previous = {"previous_response_id": response_id} if response_id else previous

    async def _use_conversation(self) -> None:
        conversation = await self._send("POST", "/v1/conversations", {"metadata": {"a": "b"}})
        if conversation is None:
            return
        path = f"/v1/conversations/{conversation['id']}"
        item = {"type": "message", "role": "user", "content": "Hello"}
        await self._send("POST", f"{path}/items", {"items": [item]})
        await self._create(conversation=conversation["id"])
        await self._create_stream("says it", conversation=conversation["id"])
        await self._send("POST", path, {"metadata": {"a": None, "c": "d"}})
        await self._send("GET", f"{path}/items?limit=2")
        await self._send("DELETE", path)

    async def _cancel(self) -> None:
        if response := await self._create("falls silent", background=True):
            ended = await self._send("POST", f"/v1/responses/{response['id']}/cancel")
            if ended is not None and ended["status"] != "cancelled":
                self.violations.append(f"a cancelled response has the status {ended['status']}")

    async def _disconnect(self) -> None:
        """Disconnect in the middle of a foreground stream."""
        async with self._client.open("POST", "/v1/responses", _body("falls silent", stream=True)) as stream:
            if stream.is_event_stream:
                await stream.read(max_frames=4)
                self._responses.setdefault(parse_event(stream.frames[0])["response"]["id"], None)
                stream.disconnect(False)

    async def _delete(self) -> None:
        if response := await self._create():
            done = await self._send("DELETE", f"/v1/responses/{response['id']}")
            (self._deleted if done else self._doubtful).add(response["id"])

    async def _repeat_with_key(self) -> None:
        body, key = _body("says it"), new_nonce()
        first = self._record_answer(await self._client.post(body, key=key))
        second = self._record_answer(await self._client.post(body, key=key))
        if first and second and first["id"] != second["id"]:
            self.violations.append("one key created two responses")

    # ---- requests and recorded answers

    async def _create(self, name: str = "says it", **fields: Any) -> Json | None:
        return self._record_answer(await self._client.post(_body(name, **fields)))

    async def _create_stream(self, name: str, **fields: Any) -> str:
        async with self._client.open("POST", "/v1/responses", _body(name, stream=True, **fields)) as stream:
            if not stream.is_event_stream:
                self._record_answer(Answer(stream.status, await stream.read_body()))
                return ""
            await stream.read()
        self._record_stream(stream, 0)
        return str(parse_event(stream.frames[0])["response"]["id"])

    async def _send(self, method: str, path: str, body: Any = None) -> Json | None:
        return self._record_answer(await self._client.send(method, path, body))

    async def _poll(self, response_id: str) -> None:
        while self._responses[response_id] is None:
            await asyncio.sleep(0.01)
            await self._send("GET", f"/v1/responses/{response_id}")

    def _record_answer(self, answer: Answer) -> Json | None:
        if answer.status != 200:
            error = answer.error()
            if answer.status not in _ALLOWED and error.get("code") != "server_restarted":
                self.violations.append(f"a request was answered with {answer.status} {answer.body[:300]!r}")
            return None
        try:
            body = answer.json()
        except msgspec.DecodeError:
            self.violations.append(f"a request was answered with 200 and {answer.body[:300]!r}")
            return None
        if body.get("object") == "response":
            self._record_response(body)
        return body

    def _record_stream(self, stream: Stream, first: int) -> None:
        if not stream.is_event_stream:
            if stream.status not in _ALLOWED:
                self.violations.append(f"a replay was answered with {stream.status}")
            return
        if first:
            numbers = [parse_event(frame)["sequence_number"] for frame in stream.frames]
            if numbers != list(range(first, first + len(numbers))):
                self.violations.append(f"a replay after {first - 1} has the numbers {numbers}")
            return
        try:
            self._record_response(terminal_response(stream.frames))
        except InvalidStream as error:
            self.violations.append(f"a stream is invalid: {error}")

    def _record_response(self, response: Json) -> None:
        previous = self._responses.get(response["id"])
        ended = response["status"] in ENDED
        if previous is not None and previous != response and not _is_store_failure(previous):
            self.violations.append(f"an end changed: {previous['status']} {previous['error']} → {response['status']}")
        self._responses[response["id"]] = (
            response if ended and (previous is None or not _is_store_failure(previous)) else previous
        )

    # ---- verification

    async def verify(self, begun: list[str]) -> list[str]:
        """Verify the reported responses, and that all others in `begun` are not stuck; returns violations."""
        found = [await self._verify_response(response_id) for response_id in self._responses]
        found += [
            await self._verify_unreported(response_id) for response_id in begun if response_id not in self._responses
        ]
        return [sentence for sentence in found if sentence]

    async def _verify_response(self, response_id: str) -> str:
        ended = await self._wait_for_end(response_id)
        if response_id in self._deleted:
            return "" if ended is None else f"{response_id} was deleted and still exists"
        if ended is None:
            may_be_missing = response_id in self._doubtful or _is_store_failure(self._responses[response_id])
            return "" if may_be_missing else f"{response_id} was acknowledged and is lost"
        if ended["status"] not in ENDED:
            return f"{response_id} is stuck: {ended['status']}"
        seen = self._responses[response_id]
        if seen is not None and seen != ended and not _is_store_failure(seen):
            return f"{response_id} was {seen['status']} {seen['error']} and is {ended['status']} {ended['error']}"
        return await self._verify_replay(response_id, ended)

    async def _verify_replay(self, response_id: str, ended: Json) -> str:
        stream = await self._client.replay(response_id)
        try:
            return "" if terminal_response(stream.frames) == ended else f"{response_id}: its replay differs from GET"
        except InvalidStream as error:
            return f"{response_id}: its replay is invalid: {error}"

    async def _verify_unreported(self, response_id: str) -> str:
        ended = await self._wait_for_end(response_id)
        stuck = ended is not None and ended["status"] not in ENDED
        return f"{response_id}, which was not reported to any client, is stuck" if stuck else ""

    async def _wait_for_end(self, response_id: str) -> Json | None:
        """Return the ended response, or its state after the timeout; None if it does not exist."""
        deadline = time.monotonic() + SETTLE_SECONDS
        while True:
            answer = await self._client.get(f"/v1/responses/{response_id}")
            if answer.status != 200:
                return None
            response = answer.json()
            if response["status"] in ENDED or time.monotonic() > deadline:
                return response
            await asyncio.sleep(0.02)


def _is_store_failure(response: Json | None) -> bool:
    """Whether an end reports that the store failed: in this case the stored end counts."""
    return response is not None and (response["error"] or {}).get("code") == "service_unavailable"


def _body(name: str, **fields: Any) -> dict[str, Any]:
    return {"model": "fake", "input": f"{new_nonce()} The model {name}", **fields}
