"""Stubs of the servers that Antiphon supports as HTTP engines, backed by the fake engine.

The accepted fields (`dialects.py`), the field names and the stream format are written independently, from the
documentation of the servers and not from Antiphon's field table. A field that the server would not know is answered
with 400, so no field can be sent in vain.
"""

from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import Any

import msgspec

from antiphon.core.prompt import CallPiece, Chunk, GenerationRequest, Sampling, TokenCounts
from antiphon.engines.fake.engine import FakeEngine
from tests.engines.http.stubs.completion_stub import (
    RawCompletionStub,
    error_response,
    parse_constraint,
    parse_prompt,
    to_usage,
)
from tests.engines.http.stubs.dialects import Dialect, find_dialect
from tests.engines.unix_server import STREAM, json_response, sse_event
from tests.support.local_servers import Reader, Writer, serve_tcp

Json = dict[str, Any]
encode = msgspec.json.encode

SAMPLING_NAMES = {"no_stop_trim": "include_stop_str_in_output", "repeat_penalty": "repetition_penalty"}


class EngineStub:
    """One server, in one dialect.

    `chat_bodies` are the bodies of chat completion requests, `raw_bodies` those of raw completions, and `heads` the
    heads of all requests. Probes are only in `heads`.
    """

    def __init__(self, dialect: Dialect) -> None:
        self.dialect = dialect
        self.engine = FakeEngine()
        self.raw = RawCompletionStub(dialect)
        self.chat_bodies: list[Json] = []
        self.heads: list[str] = []
        self.url = ""

    @property
    def raw_bodies(self) -> list[Json]:
        return self.raw.bodies

    async def serve(self, reader: Reader, writer: Writer) -> None:
        while True:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            sizes = [line[15:] for line in head.split("\r\n") if line.lower().startswith("content-length:")]
            body = await reader.readexactly(int(sizes[0])) if sizes else b""
            self.heads.append(head)
            await self._respond(head.split(" ")[1], body, writer)

    async def _respond(self, path: str, body: bytes, writer: Writer) -> None:
        dialect = self.dialect
        if path == f"{dialect.base_path}/models":
            card = {"id": "m", "object": "model", "created": 1, **dialect.card}
            writer.write(json_response(encode({"object": "list", "data": [card]})))
        elif path in dialect.asides:
            writer.write(json_response(encode(dialect.asides[path])))
        elif path.endswith("/chat/completions") and not dialect.generates:
            writer.write(json_response(b'{"detail":"Not Found"}', "404 Not Found"))
        elif path in self.raw.paths or path in (dialect.counting, f"{dialect.base_path}/chat/completions"):
            await self._generate_or_count(path, msgspec.json.decode(body), writer)
        else:
            writer.write(json_response(b'{"detail":"Not Found"}', "404 Not Found"))

    async def _generate_or_count(self, path: str, body: Json, writer: Writer) -> None:
        if path == self.dialect.counting and "messages" in body and path != self.dialect.tokenizing:
            writer.write(
                json_response(encode({"input_tokens": await self.engine.count_tokens("m", parse_prompt(body))}))
            )
        elif path.endswith("/chat/completions"):
            await self._complete_chat(body, writer)
        else:
            await self.raw.respond(path, body, writer)

    async def _complete_chat(self, body: Json, writer: Writer) -> None:
        if "messages" not in body or "chat_template" in body:
            flags = "--enable-auto-tool-choice and --tool-call-parser"
            message = "No templates are taken." if self.dialect.parses_tools else f"auto requires {flags} to be set"
            writer.write(error_response(message))
            return
        self.chat_bodies.append(body)
        if unknown := body.keys() - self.dialect.accepted_fields:
            writer.write(error_response(f"unknown fields: {sorted(unknown)}"))
            return
        request = to_generation_request(body, self.dialect)
        if not body["stream"]:
            chunks = [chunk async for chunks in self.engine.generate(request) for chunk in chunks]
            writer.write(json_response(encode(to_completion(chunks, self.dialect, body.get("n", 1)))))
            return
        writer.write(STREAM)
        calls = Chunk()
        async with aclosing(self.engine.generate(request)) as lists:
            async for chunks in lists:
                if self.dialect.joins_calls:
                    chunks = [joined for chunk in chunks for joined in _join_call_pieces(chunk, calls)]
                writer.write(
                    b"".join(
                        sse_event(encode(data)) for chunk in chunks for data in to_stream_events(chunk, self.dialect)
                    )
                )
                await writer.drain()
                if writer.is_closing():
                    raise ConnectionResetError
        writer.write(sse_event(b"[DONE]"))
        await writer.drain()
        writer.write(b"0\r\n\r\n")


@asynccontextmanager
async def run_stub(name: str) -> AsyncIterator[EngineStub]:
    stub = EngineStub(find_dialect(name))
    async with serve_tcp(stub.serve) as port:
        stub.url = f"{name}://127.0.0.1:{port}"
        yield stub


def to_generation_request(body: Json, dialect: Dialect) -> GenerationRequest:
    fields = {SAMPLING_NAMES.get(name, name): value for name, value in body.items()}
    sampling = {name: fields[name] for name in Sampling.__struct_fields__ if name in fields}
    sampling["max_tokens"] = fields.get("max_completion_tokens", fields.get("max_tokens"))
    sampling["logprobs"] = fields.get("top_logprobs", 0) if fields.get("logprobs") else None
    sampling["stop"] = tuple(fields.get("stop", ()))
    if dialect.includes_stop and body["stream"]:
        sampling["include_stop_str_in_output"] = True
    return GenerationRequest(
        model=body["model"],
        prompt=parse_prompt(body),
        sampling=Sampling(**sampling),
        constraint=parse_constraint(body),
        effort=body.get("reasoning_effort"),
    )


def to_stream_events(chunk: Chunk, dialect: Dialect) -> list[Json]:
    """Return the events of a chunk as this server streams them: the finish and the usage each in an event of its
    own.
    """
    delta = to_delta(chunk, dialect)
    logprobs = {"content": [msgspec.to_builtins(one) for one in chunk.logprobs]} if chunk.logprobs else None
    events = [_completion_chunk(delta, None, logprobs)] if delta else []
    if chunk.finish is not None:
        events.append(_completion_chunk({}, chunk.finish, None))
        usage = {
            **_completion_chunk({}, None, None),
            "choices": [],
            "usage": to_usage(chunk.counts or TokenCounts(), dialect),
        }
        events.append(usage)
    return events


def _completion_chunk(delta: Json, finish: str | None, logprobs: Json | None) -> Json:
    choice = {"index": 0, "delta": delta, "logprobs": logprobs, "finish_reason": finish}
    return {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]}


def _join_call_pieces(chunk: Chunk, calls: Chunk) -> list[Chunk]:
    """Hold the pieces of a call until the finish, and return them as one piece."""
    calls.calls += chunk.calls
    if not calls.calls:
        return [chunk]
    if chunk.finish is None:
        return []
    arguments = "".join(piece.arguments for piece in calls.calls)
    return [Chunk(calls=(CallPiece(index=0, name=calls.calls[0].name, arguments=arguments),)), chunk]


def to_delta(chunk: Chunk, dialect: Dialect) -> Json:
    delta: Json = {}
    if chunk.text:
        delta["content"] = chunk.text
    if chunk.reasoning:
        delta[dialect.reasoning_field] = chunk.reasoning
    for call in chunk.calls:
        function: Json = {"arguments": call.arguments}
        started = {"id": f"call_{call.index}", "type": "function"} if call.name else {}
        if call.name:
            function["name"] = call.name
        delta.setdefault("tool_calls", []).append({"index": call.index, **started, "function": function})
    return delta


def _join_calls(pieces: list[CallPiece]) -> list[Json]:
    """Join the pieces of each call. The calls of an unstreamed response have no index."""
    calls: dict[int, Json] = {}
    for piece in pieces:
        function = {"name": piece.name, "arguments": ""}
        call = calls.setdefault(piece.index, {"id": f"call_{piece.index}", "type": "function", "function": function})
        call["function"]["arguments"] += piece.arguments
    return [*calls.values()]


def to_completion(chunks: list[Chunk], dialect: Dialect, count: int) -> Json:
    """Return an unstreamed response with `count` choices, the best one last in the list; the others are numbered."""
    text, reasoning = ("".join(getattr(chunk, name) for chunk in chunks) for name in ("text", "reasoning"))
    pieces = [piece for chunk in chunks for piece in chunk.calls]
    message: Json = {"role": "assistant", "content": text or None}
    if reasoning:
        message[dialect.reasoning_field] = reasoning
    if pieces:
        message["tool_calls"] = _join_calls(pieces)
    last = chunks[-1]
    logprobs = [msgspec.to_builtins(one) for chunk in chunks for one in chunk.logprobs]
    choices = [
        {
            "index": number,
            "message": message | {"content": f"{text} ({number})"} if number else message,
            "finish_reason": last.finish,
            **({"logprobs": {"content": logprobs}} if logprobs else {}),
        }
        for number in reversed(range(count))
    ]
    return {"object": "chat.completion", "choices": choices, "usage": to_usage(last.counts or TokenCounts(), dialect)}
