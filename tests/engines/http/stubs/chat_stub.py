"""A stand-in for each server that Antiphon can have as an engine, over the fake engine: what it takes (dialects.py),
what it calls things and how it streams is written here once more, from the servers' documentation, not from our table.

A field that the server would not know is a 400, so nothing can be sent in vain.
"""

from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import Any

import msgspec

from antiphon.core.prompt import CallPiece, Chunk, Counts, Sampling, Work
from antiphon.engines.fake.engine import FakeEngine
from tests.engines.http.stubs.completion_stub import RawStub, constraint_of, prompt_of, refused, usage_of
from tests.engines.http.stubs.dialects import DIALECTS as DIALECTS
from tests.engines.http.stubs.dialects import Dialect
from tests.engines.unix_server import STREAM, Reader, Writer, answer, event
from tests.support.local_servers import tcp as tcp

Json = dict[str, Any]
encode = msgspec.json.encode

OURS = {"no_stop_trim": "include_stop_str_in_output", "repeat_penalty": "repetition_penalty"}


class Stub:
    """`seen` are the bodies of the chats that were asked for, `completed` of raw prompts, `heads` the head of every
    request. What only asks what the server is, is not among them."""

    def __init__(self, dialect: Dialect) -> None:
        self.dialect = dialect
        self.engine = FakeEngine()
        self.raw = RawStub(dialect)
        self.seen: list[Json] = []
        self.heads: list[str] = []
        self.url = ""

    @property
    def completed(self) -> list[Json]:
        return self.raw.seen

    async def serve(self, reader: Reader, writer: Writer) -> None:
        while True:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            sizes = [line[15:] for line in head.split("\r\n") if line.lower().startswith("content-length:")]
            body = await reader.readexactly(int(sizes[0])) if sizes else b""
            self.heads.append(head)
            await self._answer(head.split(" ")[1], body, writer)

    async def _answer(self, path: str, body: bytes, writer: Writer) -> None:
        dialect = self.dialect
        if path == f"{dialect.port}/models":
            card = {"id": "m", "object": "model", "created": 1, **dialect.card}
            writer.write(answer(encode({"object": "list", "data": [card]})))
        elif path in dialect.asides:
            writer.write(answer(encode(dialect.asides[path])))
        elif path.endswith("/chat/completions") and not dialect.generates:
            writer.write(answer(b'{"detail":"Not Found"}', "404 Not Found"))
        elif path in self.raw.paths or path in (dialect.counting, f"{dialect.port}/chat/completions"):
            await self._do(path, msgspec.json.decode(body), writer)
        else:
            writer.write(answer(b'{"detail":"Not Found"}', "404 Not Found"))

    async def _do(self, path: str, body: Json, writer: Writer) -> None:
        if path == self.dialect.counting and "messages" in body and path != self.dialect.tokenizing:
            writer.write(answer(encode({"input_tokens": await self.engine.count("m", prompt_of(body))})))
        elif path.endswith("/chat/completions"):
            await self._chat(body, writer)
        else:
            await self.raw.answer(path, body, writer)

    async def _chat(self, body: Json, writer: Writer) -> None:
        if "messages" not in body or "chat_template" in body:
            flags = "--enable-auto-tool-choice and --tool-call-parser"
            words = "No templates are taken." if self.dialect.parses_tools else f"auto requires {flags} to be set"
            writer.write(refused(words))
            return
        self.seen.append(body)
        if unknown := body.keys() - self.dialect.takes:
            writer.write(refused(f"unknown fields: {sorted(unknown)}"))
            return
        work = work_of(body, self.dialect)
        if not body["stream"]:
            chunks = [chunk async for chunks in self.engine.generate(work) for chunk in chunks]
            writer.write(answer(encode(whole(chunks, self.dialect, body.get("n", 1)))))
            return
        writer.write(STREAM)
        calls = Chunk()
        async with aclosing(self.engine.generate(work)) as lists:
            async for chunks in lists:
                if self.dialect.whole_calls:
                    chunks = [whole for chunk in chunks for whole in _held(chunk, calls)]
                writer.write(b"".join(event(encode(data)) for chunk in chunks for data in told(chunk, self.dialect)))
                await writer.drain()
                if writer.is_closing():
                    raise ConnectionResetError
        writer.write(event(b"[DONE]"))
        await writer.drain()
        writer.write(b"0\r\n\r\n")


@asynccontextmanager
async def standing_in(name: str) -> AsyncIterator[Stub]:
    stub = Stub(DIALECTS[name])
    async with tcp(stub.serve) as port:
        stub.url = f"{name}://127.0.0.1:{port}"
        yield stub


def work_of(body: Json, dialect: Dialect) -> Work:
    given = {OURS.get(name, name): value for name, value in body.items()}
    plain = {name: given[name] for name in Sampling.__struct_fields__ if name in given}
    plain["max_tokens"] = given.get("max_completion_tokens", given.get("max_tokens"))
    plain["logprobs"] = given.get("top_logprobs") if given.get("logprobs") else None
    plain["stop"] = tuple(given.get("stop", ()))
    if dialect.keeps_stop and body["stream"]:
        plain["include_stop_str_in_output"] = True
    return Work(
        model=body["model"],
        prompt=prompt_of(body),
        sampling=Sampling(**plain),
        constraint=constraint_of(body),
        effort=body.get("reasoning_effort"),
    )


def told(chunk: Chunk, dialect: Dialect) -> list[Json]:
    """A chunk as this server would stream it: the end and the usage each in an event of its own."""
    delta = delta_of(chunk, dialect)
    logprobs = {"content": [msgspec.to_builtins(one) for one in chunk.logprobs]} if chunk.logprobs else None
    said = [_event(delta, None, logprobs)] if delta else []
    if chunk.finish is not None:
        said.append(_event({}, chunk.finish, None))
        usage = {**_event({}, None, None), "choices": [], "usage": usage_of(chunk.counts or Counts(), dialect)}
        said.append(usage)
    return said


def _event(delta: Json, finish: str | None, logprobs: Json | None) -> Json:
    choice = {"index": 0, "delta": delta, "logprobs": logprobs, "finish_reason": finish}
    return {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]}


def _held(chunk: Chunk, calls: Chunk) -> list[Chunk]:
    """The pieces of a call, put together before they are told."""
    calls.calls += chunk.calls
    if not calls.calls:
        return [chunk]
    if chunk.finish is None:
        return []
    arguments = "".join(piece.arguments for piece in calls.calls)
    return [Chunk(calls=(CallPiece(index=0, name=calls.calls[0].name, arguments=arguments),)), chunk]


def delta_of(chunk: Chunk, dialect: Dialect) -> Json:
    delta: Json = {}
    if chunk.text:
        delta["content"] = chunk.text
    if chunk.thought:
        delta[dialect.thought] = chunk.thought
    for call in chunk.calls:
        function: Json = {"arguments": call.arguments}
        started = {"id": f"call_{call.index}", "type": "function"} if call.name else {}
        if call.name:
            function["name"] = call.name
        delta.setdefault("tool_calls", []).append({"index": call.index, **started, "function": function})
    return delta


def _called(pieces: list[CallPiece]) -> list[Json]:
    """Whole calls have no index."""
    calls: dict[int, Json] = {}
    for piece in pieces:
        function = {"name": piece.name, "arguments": ""}
        call = calls.setdefault(piece.index, {"id": f"call_{piece.index}", "type": "function", "function": function})
        call["function"]["arguments"] += piece.arguments
    return [*calls.values()]


def whole(chunks: list[Chunk], dialect: Dialect, answers: int) -> Json:
    text, thought = ("".join(getattr(chunk, name) for chunk in chunks) for name in ("text", "thought"))
    pieces = [piece for chunk in chunks for piece in chunk.calls]
    message: Json = {"role": "assistant", "content": text or None}
    if thought:
        message[dialect.thought] = thought
    if pieces:
        message["tool_calls"] = _called(pieces)
    last = chunks[-1]
    choices = [
        {"index": number, "message": message, "finish_reason": last.finish} for number in reversed(range(answers))
    ]
    return {"object": "chat.completion", "choices": choices, "usage": usage_of(last.counts or Counts(), dialect)}
