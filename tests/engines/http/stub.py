"""A stand-in for each server that Antiphon can have as an engine, over the fake engine: what it takes, what it calls
things and how it streams is written here once more, from the servers' documentation, not from our table.

A field that the server would not know is a 400, so nothing can be sent in vain.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from typing import Any

import msgspec
from msgspec import Struct

from antiphon.core.prompt import (
    CallPiece,
    ChatPrompt,
    Chunk,
    Constraint,
    Counts,
    JsonObject,
    JsonSchema,
    Sampling,
    Work,
)
from antiphon.engines.fake.engine import FakeEngine
from tests.engines.upstream import STREAM, Reader, Writer, answer, event

Json = dict[str, Any]
encode = msgspec.json.encode

EVERYONE = frozenset({
    "model", "messages", "stream", "stream_options", "temperature", "top_p", "frequency_penalty", "presence_penalty",
    "stop", "seed", "response_format", "tools", "tool_choice", "parallel_tool_calls", "logprobs", "top_logprobs", "n",
    "reasoning_effort", "max_tokens", "max_completion_tokens",
})  # fmt: skip
OURS = {"no_stop_trim": "include_stop_str_in_output", "repeat_penalty": "repetition_penalty"}


class Dialect(Struct, frozen=True, kw_only=True):
    name: str
    port: str = "/v1"
    takes: frozenset[str]
    thought: str = "reasoning_content"
    asides: dict[str, Json] = {}  # path → what a GET or POST of it is answered
    card: Json = {}
    counting: str = ""
    tells_cached: bool = True
    whole_calls: bool = False
    keeps_stop: bool = False


BEYOND = frozenset(
    {"top_k", "min_p", "repetition_penalty", "ignore_eos", "skip_special_tokens", "chat_template_kwargs"}
)
DIALECTS = {
    dialect.name: dialect
    for dialect in (
        Dialect(
            name="vllm",
            takes=EVERYONE
            | BEYOND
            | {"include_stop_str_in_output", "cache_salt", "priority", "use_beam_search", "length_penalty"},
            thought="reasoning",
            asides={"/version": {"version": "0.32.0"}},
            card={"max_model_len": 32768, "owned_by": "vllm", "root": "m", "parent": None, "permission": []},
            counting="/tokenize",
        ),
        Dialect(
            name="sglang",
            takes=EVERYONE | BEYOND | {"no_stop_trim", "cache_salt", "priority"},
            asides={"/server_info": {"version": "0.5.9", "model_path": "m"}},
            card={"max_model_len": 32768, "owned_by": "sglang"},
        ),
        Dialect(
            name="ovms",
            port="/v3",
            takes=(EVERYONE | BEYOND | {
                "include_stop_str_in_output", "best_of", "length_penalty", "num_assistant_tokens",
                "assistant_confidence_threshold", "max_ngram_size",
            }) - {"logprobs", "top_logprobs", "parallel_tool_calls", "reasoning_effort"},
            asides={"/v2": {"name": "OpenVINO Model Server", "version": "2026.3"}},
            tells_cached=False,
            keeps_stop=True,
        ),
        Dialect(
            name="llamacpp-server",
            takes=(EVERYONE | BEYOND | {"repeat_penalty", "return_progress"})
            - {"repetition_penalty", "skip_special_tokens"},
            asides={"/props": {"total_slots": 2, "build_info": "b9000-abc", "modalities": {"vision": False}}},
            card={"meta": {"n_ctx": 32768, "n_ctx_train": 131072}, "owned_by": "llamacpp"},
            counting="/v1/chat/completions/input_tokens",
        ),
        Dialect(
            name="ollama",
            takes=EVERYONE - {"n", "tool_choice", "parallel_tool_calls", "max_completion_tokens"},
            thought="reasoning",
            asides={
                "/api/version": {"version": "0.40.12"},
                "/api/show": {"capabilities": ["completion", "tools", "vision", "thinking"], "details": {}},
            },
            tells_cached=False,
            whole_calls=True,
        ),
        Dialect(name="openai", takes=(EVERYONE | {"prompt_cache_key"}) - {"max_tokens"}),
    )
}  # fmt: skip


class Stub:
    """`seen` are the bodies of the chats that were asked for, `heads` the head of every request."""

    def __init__(self, dialect: Dialect) -> None:
        self.dialect = dialect
        self.engine = FakeEngine()
        self.seen: list[Json] = []
        self.heads: list[str] = []
        self.url = ""

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
        elif path == dialect.counting:
            tokens = await self.engine.count("m", prompt_of(msgspec.json.decode(body)))
            writer.write(answer(encode({"count": tokens} if dialect.name == "vllm" else {"input_tokens": tokens})))
        elif path == f"{dialect.port}/chat/completions":
            await self._chat(msgspec.json.decode(body), writer)
        else:
            writer.write(answer(b'{"detail":"Not Found"}', "404 Not Found"))

    async def _chat(self, body: Json, writer: Writer) -> None:
        self.seen.append(body)
        if unknown := body.keys() - self.dialect.takes:
            refusal = {"error": {"message": f"unknown fields: {sorted(unknown)}", "code": 400}}
            writer.write(answer(encode(refusal), "400 Bad Request"))
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


@asynccontextmanager
async def tcp(serve: Callable[[Reader, Writer], Awaitable[None]], port: int = 0, **options: Any) -> AsyncIterator[int]:
    """A server on a port of this machine; its connections end with it."""
    tasks: dict[asyncio.Task[Any], Writer] = {}

    async def served(reader: Reader, writer: Writer) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks[task] = writer
        try:
            await serve(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            del tasks[task]
            writer.close()

    server = await asyncio.start_server(served, "127.0.0.1", port, **options)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for writer in tasks.values():
            writer.transport.abort()
        if tasks:
            await asyncio.wait(list(tasks), timeout=2)


def prompt_of(body: Json) -> ChatPrompt:
    return ChatPrompt(
        messages=tuple(body["messages"]),
        tools=tuple(body.get("tools", ())),
        tool_choice=body.get("tool_choice", "auto"),
        template_kwargs=body.get("chat_template_kwargs", {}),
    )


def work_of(body: Json, dialect: Dialect) -> Work:
    given = {OURS.get(name, name): value for name, value in body.items()}
    plain = {name: given[name] for name in Sampling.__struct_fields__ if name in given and name != "n"}
    plain["max_tokens"] = given.get("max_completion_tokens", given.get("max_tokens"))
    plain["logprobs"] = given.get("top_logprobs") if given.get("logprobs") else None
    plain["stop"] = tuple(given.get("stop", ()))
    if dialect.keeps_stop and body["stream"]:
        plain["include_stop_str_in_output"] = True
    return Work(
        model=body["model"],
        prompt=prompt_of(body),
        sampling=Sampling(**plain),
        constraint=_constraint(body.get("response_format")),
        effort=body.get("reasoning_effort"),
    )


def _constraint(form: Json | None) -> Constraint | None:
    if form is None:
        return None
    return JsonObject() if form["type"] == "json_object" else JsonSchema(form["json_schema"]["schema"])


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


def usage_of(counts: Counts, dialect: Dialect) -> Json:
    usage: Json = {
        "prompt_tokens": counts.input_tokens,
        "completion_tokens": counts.output_tokens,
        "total_tokens": counts.input_tokens + counts.output_tokens,
    }
    if dialect.tells_cached:
        usage["prompt_tokens_details"] = {"cached_tokens": counts.cached_tokens}
    return usage


def whole(chunks: list[Chunk], dialect: Dialect, answers: int) -> Json:
    message = {"role": "assistant", "content": "".join(chunk.text for chunk in chunks)}
    last = chunks[-1]
    choices = [
        {"index": number, "message": message, "finish_reason": last.finish} for number in reversed(range(answers))
    ]
    return {"object": "chat.completion", "choices": choices, "usage": usage_of(last.counts or Counts(), dialect)}
