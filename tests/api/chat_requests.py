"""Requests to chat completions and completions, with the checks that every answer must pass."""

from collections.abc import Callable
from typing import Any

from msgspec import Struct

from tests.api.app import ApiServer
from tests.oracles.chat import parse_chunks

Check = Callable[[dict[str, Any]], None]


class CompletionApi(Struct, frozen=True):
    """One of the two endpoints. `body`: the default request fields; `check` validates a body, `check_chunk` a chunk."""

    path: str
    body: dict[str, Any]
    check: Check
    check_chunk: Check

    async def create(self, server: ApiServer, **body: Any) -> dict[str, Any]:
        answer = await server.post(self.path, {**self.body, **body})
        assert answer.status == 200, answer.body
        completion: dict[str, Any] = answer.json()
        self.check(completion)
        return completion

    async def stream(self, server: ApiServer, **body: Any) -> list[dict[str, Any]]:
        answer = await server.post(self.path, {**self.body, "stream": True, **body})
        assert answer.status == 200, answer.body
        assert (answer.header(b"content-type") or b"").startswith(b"text/event-stream")
        chunks = parse_chunks(answer.body)
        for chunk in chunks:
            self.check_chunk(chunk)
        return chunks

    async def expect_rejection(self, server: ApiServer, **body: Any) -> dict[str, Any]:
        answer = await server.post(self.path, {**self.body, **body})
        assert answer.status == 400, answer.body
        return answer.error
