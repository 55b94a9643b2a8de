"""One client that uses everything that is kept, and writes down what it was told, so that it can be held against it."""

import asyncio
import time
from typing import Any

from drills.harness.client import GONE, Answer, Client, Stream
from drills.harness.journal import new_nonce
from drills.harness.oracle import ENDED, Json, Wrong, event, whole

STEP_SECONDS = 10.0
SETTLE_SECONDS = 10.0
_ALLOWED = (200, 503)  # and 400, where a step before it failed


class Scenario:
    """`wrong` is what went against the rules on the way; `judge` looks at what is left."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._told: dict[str, Json | None] = {}  # ids that we were told, and how they ended if we were told that
        self._deleted: set[str] = set()
        self._doubtful: set[str] = set()  # were to be deleted, and nobody could say whether they are
        self.wrong: list[str] = []

    async def play(self) -> None:
        steps = (self._plain, self._stream, self._background, self._background_stream, self._chain, self._converse,
                 self._cancel, self._leave, self._delete, self._twice)  # fmt: skip
        for step in steps:
            try:
                async with asyncio.timeout(STEP_SECONDS):
                    await step()
            except TimeoutError:
                self.wrong.append(f"{step.__name__.strip('_')} hangs")
            except GONE as error:
                self.wrong.append(f"{step.__name__.strip('_')} broke off: {error!r}")

    # ---- what is done

    async def _plain(self) -> None:
        response = await self._create()
        if response:
            await self._ask("GET", f"/v1/responses/{response['id']}")
            await self._ask("GET", f"/v1/responses/{response['id']}/input_items")

    async def _stream(self) -> None:
        await self._create_stream("thinks first")

    async def _background(self) -> None:
        if response := await self._create(background=True):
            await self._poll(response["id"])

    async def _background_stream(self) -> None:
        if response_id := await self._create_stream("says it", background=True):
            self._take_stream(await self._client.replay(response_id, 2), 3)

    async def _chain(self) -> None:
        previous: dict[str, Any] = {}
        for stream in (False, True, False):
            if stream:
                response_id = await self._create_stream("says it", **previous)
            else:
                response_id = (await self._create(**previous) or {}).get("id", "")
            previous = {"previous_response_id": response_id} if response_id else previous

    async def _converse(self) -> None:
        conversation = await self._ask("POST", "/v1/conversations", {"metadata": {"a": "b"}})
        if conversation is None:
            return
        path = f"/v1/conversations/{conversation['id']}"
        item = {"type": "message", "role": "user", "content": "Hello"}
        await self._ask("POST", f"{path}/items", {"items": [item]})
        await self._create(conversation=conversation["id"])
        await self._create_stream("says it", conversation=conversation["id"])
        await self._ask("POST", path, {"metadata": {"a": None, "c": "d"}})
        await self._ask("GET", f"{path}/items?limit=2")
        await self._ask("DELETE", path)

    async def _cancel(self) -> None:
        if response := await self._create("falls silent", background=True):
            ended = await self._ask("POST", f"/v1/responses/{response['id']}/cancel")
            if ended is not None and ended["status"] != "cancelled":
                self.wrong.append(f"a cancelled response is {ended['status']}")

    async def _leave(self) -> None:
        """In the middle of a foreground stream."""
        async with self._client.open("POST", "/v1/responses", _body("falls silent", stream=True)) as stream:
            if stream.streams:
                await stream.read(most=4)
                self._told.setdefault(event(stream.frames[0])["response"]["id"], None)
                stream.hang_up(False)

    async def _delete(self) -> None:
        if response := await self._create():
            done = await self._ask("DELETE", f"/v1/responses/{response['id']}")
            (self._deleted if done else self._doubtful).add(response["id"])

    async def _twice(self) -> None:
        body, key = _body("says it"), new_nonce()
        first = self._take(await self._client.post(body, key=key))
        second = self._take(await self._client.post(body, key=key))
        if first and second and first["id"] != second["id"]:
            self.wrong.append("one key gave two responses")

    # ---- what was told

    async def _create(self, name: str = "says it", **wishes: Any) -> Json | None:
        return self._take(await self._client.post(_body(name, **wishes)))

    async def _create_stream(self, name: str, **wishes: Any) -> str:
        async with self._client.open("POST", "/v1/responses", _body(name, stream=True, **wishes)) as stream:
            if not stream.streams:
                self._take(Answer(stream.status, await stream.body()))
                return ""
            await stream.read()
        self._take_stream(stream, 0)
        return str(event(stream.frames[0])["response"]["id"])

    async def _ask(self, method: str, path: str, body: Any = None) -> Json | None:
        return self._take(await self._client.send(method, path, body))

    async def _poll(self, response_id: str) -> None:
        while self._told[response_id] is None:
            await asyncio.sleep(0.01)
            await self._ask("GET", f"/v1/responses/{response_id}")

    def _take(self, answer: Answer) -> Json | None:
        if answer.status != 200:
            error = answer.error()
            if answer.status not in _ALLOWED and error.get("code") != "server_restarted":
                self.wrong.append(f"an answer was {answer.status} {answer.body[:300]!r}")
            return None
        body = answer.json()
        if body.get("object") == "response":
            self._hear(body)
        return body

    def _take_stream(self, stream: Stream, first: int) -> None:
        if not stream.streams:
            if stream.status not in _ALLOWED:
                self.wrong.append(f"a replay was {stream.status}")
            return
        if first:
            numbers = [event(frame)["sequence_number"] for frame in stream.frames]
            if numbers != list(range(first, first + len(numbers))):
                self.wrong.append(f"a replay after {first - 1} has the numbers {numbers}")
            return
        try:
            self._hear(whole(stream.frames))
        except Wrong as wrong:
            self.wrong.append(f"a stream is wrong: {wrong}")

    def _hear(self, response: Json) -> None:
        known = self._told.get(response["id"])
        ended = response["status"] in ENDED
        if known is not None and known != response and not _unsure(known):
            self.wrong.append(f"an end has changed: {known['status']} {known['error']} → {response['status']}")
        self._told[response["id"]] = response if ended and (known is None or not _unsure(known)) else known

    # ---- what is left

    async def judge(self, begun: list[str]) -> list[str]:
        found = [await self._judge(response_id) for response_id in self._told]
        found += [await self._judge_unheard(response_id) for response_id in begun if response_id not in self._told]
        return [sentence for sentence in found if sentence]

    async def _judge(self, response_id: str) -> str:
        ended = await self._settled(response_id)
        if response_id in self._deleted:
            return "" if ended is None else f"{response_id} was deleted and is still there"
        if ended is None:
            known = response_id in self._doubtful or _unsure(self._told[response_id])
            return "" if known else f"{response_id} was told to a client and is lost"
        if ended["status"] not in ENDED:
            return f"{response_id} is stuck: {ended['status']}"
        told = self._told[response_id]
        if told is not None and told != ended and not _unsure(told):
            return f"{response_id} was {told['status']} {told['error']} and is {ended['status']} {ended['error']}"
        return await self._judge_replay(response_id, ended)

    async def _judge_replay(self, response_id: str, ended: Json) -> str:
        stream = await self._client.replay(response_id)
        try:
            return "" if whole(stream.frames) == ended else f"{response_id}: its replay is not what GET says"
        except Wrong as wrong:
            return f"{response_id}: its replay is wrong: {wrong}"

    async def _judge_unheard(self, response_id: str) -> str:
        ended = await self._settled(response_id)
        stuck = ended is not None and ended["status"] not in ENDED
        return f"{response_id}, which nobody was told of, is stuck" if stuck else ""

    async def _settled(self, response_id: str) -> Json | None:
        """As it is in the end, or after all the time that there is; None: there is no such response."""
        deadline = time.monotonic() + SETTLE_SECONDS
        while True:
            answer = await self._client.get(f"/v1/responses/{response_id}")
            if answer.status != 200:
                return None
            response = answer.json()
            if response["status"] in ENDED or time.monotonic() > deadline:
                return response
            await asyncio.sleep(0.02)


def _unsure(told: Json | None) -> bool:
    """An end that says that the store did not answer: what the store says later is what counts."""
    return told is not None and (told["error"] or {}).get("code") == "service_unavailable"


def _body(name: str, **wishes: Any) -> dict[str, Any]:
    return {"model": "fake", "input": f"{new_nonce()} The model {name}", **wishes}
