"""Posting to chat and completions, and what is expected of every answer."""

from collections.abc import Callable
from typing import Any

from msgspec import Struct

from tests.api.app import Api
from tests.oracles.chat import frames_in

Check = Callable[[dict[str, Any]], None]


class Dialogue(Struct, frozen=True):
    """`body`: what is posted unless a test says otherwise; the checks are of a whole answer and of a piece of one."""

    path: str
    body: dict[str, Any]
    check: Check
    check_piece: Check

    async def made(self, server: Api, **body: Any) -> dict[str, Any]:
        answer = await server.post(self.path, {**self.body, **body})
        assert answer.status == 200, answer.body
        completion: dict[str, Any] = answer.json()
        self.check(completion)
        return completion

    async def streamed(self, server: Api, **body: Any) -> list[dict[str, Any]]:
        answer = await server.post(self.path, {**self.body, "stream": True, **body})
        assert answer.status == 200, answer.body
        assert (answer.header(b"content-type") or b"").startswith(b"text/event-stream")
        chunks = frames_in(answer.body)
        for chunk in chunks:
            self.check_piece(chunk)
        return chunks

    async def refused(self, server: Api, **body: Any) -> dict[str, Any]:
        answer = await server.post(self.path, {**self.body, **body})
        assert answer.status == 400, answer.body
        return answer.error
