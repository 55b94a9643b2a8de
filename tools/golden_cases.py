"""The requests of the golden recordings. Each case is a name, a level, and steps whose results are stored.

A case is for one kind of models: those that generate, or those that only embed, rerank, classify or transcribe. The
same code sends the requests to the real engine for a recording, and to the recording for a replay. Nothing is random,
so that a new recording of the same engine is the same.
"""

from collections.abc import Awaitable, Callable, Container
from contextlib import aclosing
from typing import Any, Literal

import msgspec
from msgspec import Struct

from antiphon.core.prompt import (
    ChatPrompt,
    Chunk,
    GenerationRequest,
    Grammar,
    Json,
    JsonSchema,
    Prompt,
    Sampling,
    Segment,
    StructuralTag,
    TextPrompt,
    TokenPrompt,
)
from antiphon.engines.base import Task
from antiphon.engines.http.base import HttpEngine
from antiphon.errors import AntiphonError
from tools.audio import BOUNDARY, build_form, build_wav

Step = Callable[[HttpEngine], Awaitable[Any]]

SCHEMA: Json = {
    "type": "object",
    "properties": {"city": {"enum": ["Rome", "Oslo"]}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
TOOL: Json = {"type": "function", "function": {"name": "get_weather", "parameters": SCHEMA, "strict": True}}
HELLO = ChatPrompt(({"role": "user", "content": "Hello! Answer in few words."},))
WEATHER = ChatPrompt(({"role": "user", "content": "The weather in Rome?"},), (TOOL,), "required")
TAGS = StructuralTag({
    "type": "structural_tag",
    "format": {
        "type": "tag",
        "begin": "<place>",
        "content": {"type": "json_schema", "json_schema": SCHEMA},
        "end": "</place>",
    },
})  # fmt: skip
LONG = "word " * 200
CATS: Json = {"query": "cat", "documents": ["a bill", "a cat", "a dog"]}
# A tone of a tenth of a second, in printable characters, so that a recording is readable.
NOTE = build_wav(b"0:DNTNJ@6,$ $." * 58)
SEA = TextPrompt((Segment("The sea is", control=True),))


class Case(Struct, frozen=True):
    level: Literal["chat", "tokens"]
    steps: tuple[Step, ...]
    kind: Task = "generate"

    @property
    def opening(self) -> str:
        """The case with the first requests to an engine, which every case sends."""
        if self.kind != "generate":
            return f"open-{self.kind}"
        return "open" if self.level == "chat" else "open-tokens"


def find_main_task(tasks: Container[Task]) -> Task:
    """Return the main task of a model: an embedding model can also rerank, and a reranking model also reports
    `classify`.
    """
    ordered: tuple[Task, ...] = ("generate", "embed", "rerank", "transcribe")
    return next((task for task in ordered if task in tasks), "classify")


def make_generate_step(prompt: Prompt = HELLO, **options: Any) -> Step:
    """Make a step that returns all chunks of an output, and the error that ended it, if any."""
    request_fields = {name: options.pop(name) for name in list(options) if name in GenerationRequest.__struct_fields__}
    sampling = Sampling(**{"max_tokens": 12, "temperature": 0.0, **options})

    async def run(engine: HttpEngine) -> Any:
        request = GenerationRequest(
            **{"model": engine.models()[0].id, "prompt": prompt, "sampling": sampling, **request_fields}
        )
        received: list[Chunk] = []
        try:
            async with aclosing(engine.generate(request)) as lists:
                async for chunks in lists:
                    received += chunks
        except AntiphonError as error:
            return {"chunks": [compact_chunk(chunk) for chunk in received], "error": describe_error(error)}
        return {"chunks": [compact_chunk(chunk) for chunk in received]}

    return run


async def describe_engine(engine: HttpEngine) -> Any:
    """Return the capabilities that the engine reports."""
    model = engine.models()[0].id
    capabilities = await engine.capabilities(model)
    summary = {
        "version": capabilities.version,
        "context": capabilities.context,
        "slots": capabilities.slots,
        "counts": capabilities.can_count_tokens,
    }
    return {
        **summary,
        "model": model,
        "takes": sorted(capabilities.other_levels),
        "does": sorted(capabilities.tasks),
        "lacks": dict(sorted(capabilities.unsupported_reasons.items())),
        "parsers": capabilities.parsers,
    }


def make_tokenize_step(prompt: Prompt) -> Step:
    async def run(engine: HttpEngine) -> Any:
        model = engine.models()[0].id
        tokens = await engine.tokenize(model, prompt)
        return {
            "tokens": tokens,
            "count": await engine.count_tokens(model, prompt),
            "text": await engine.detokenize(model, tokens),
        }

    return run


def make_embed_step(*inputs: str | tuple[int, ...], **options: Any) -> Step:
    async def run(engine: HttpEngine) -> Any:
        try:
            return msgspec.to_builtins(await engine.embed(engine.models()[0].id, inputs, **options))
        except AntiphonError as error:
            return {"error": describe_error(error)}

    return run


def make_passthrough_step(task: Task, **fields: Any) -> Step:
    """Make a step that returns the response of a task, or the error."""

    async def run(engine: HttpEngine) -> Any:
        model = engine.models()[0].id
        try:
            reply = await engine.pass_through(model, task, msgspec.json.encode({"model": model, **fields}))
        except AntiphonError as error:
            return {"error": describe_error(error)}
        return {"media_type": reply.media_type, "body": msgspec.json.decode(reply.body)}

    return run


def make_audio_step(task: Task, audio: str = NOTE, **fields: Any) -> Step:
    """Make a step that returns the response for an audio file, or the error."""

    async def run(engine: HttpEngine) -> Any:
        model = engine.models()[0].id
        body = build_form(
            {"model": model, "language": "en", "temperature": 0, "max_completion_tokens": 3, **fields}, audio
        )
        try:
            reply = await engine.pass_through(model, task, body.encode(), f"multipart/form-data; boundary={BOUNDARY}")
        except AntiphonError as error:
            return {"error": describe_error(error)}
        return {"media_type": reply.media_type, "body": reply.body.decode()}

    return run


def compact_chunk(chunk: Chunk) -> Json:
    """Return the fields of a chunk without empty values."""
    plain: Json = msgspec.to_builtins(chunk)
    return {name: value for name, value in plain.items() if value not in ("", 0, None, ())}


def describe_error(error: AntiphonError) -> Json:
    return {"status": error.status, "code": error.code, "param": error.param, "message": error.message}


CASES: dict[str, Case] = {
    "open": Case("chat", (describe_engine,)),
    "open-tokens": Case("tokens", (describe_engine,)),
    "chat": Case("chat", (make_generate_step(), make_generate_step(max_tokens=3))),
    "chat-logprobs": Case("chat", (make_generate_step(logprobs=2, max_tokens=4),)),
    "chat-ids": Case("chat", (make_generate_step(return_token_ids=True, max_tokens=4),)),
    "chat-stop": Case(
        "chat", (make_generate_step(stop=("h",)), make_generate_step(stop=("h",), include_stop_str_in_output=True))
    ),
    "chat-schema": Case("chat", (make_generate_step(constraint=JsonSchema(SCHEMA), max_tokens=40),)),
    "chat-regex": Case("chat", (make_generate_step(constraint=Grammar("regex", "[0-9]{3}")),)),
    "chat-grammar": Case("chat", (make_generate_step(constraint=Grammar("gbnf", 'root ::= "yes" | "no"')),)),
    "chat-tags": Case("chat", (make_generate_step(constraint=TAGS, max_tokens=60),)),
    "chat-tools": Case("chat", (make_generate_step(WEATHER, max_tokens=120),)),
    "chat-at-once": Case(
        "chat", (make_generate_step(prompt_logprobs=0, max_tokens=3), make_generate_step(best_of=2, max_tokens=3))
    ),
    "chat-refused": Case(
        "chat",
        (
            make_generate_step(ChatPrompt(({"role": "user", "content": "word " * 5000},)), max_tokens=None),
            make_generate_step(model="no-such-model"),
            make_generate_step(constraint=Grammar("regex", "(")),
        ),
    ),
    "tokens": Case("tokens", (make_generate_step(), make_generate_step(max_tokens=3, return_token_ids=True))),
    "tokens-logprobs": Case("tokens", (make_generate_step(logprobs=2, max_tokens=4),)),
    "tokens-stop": Case(
        "tokens", (make_generate_step(stop=("h",)), make_generate_step(stop=("h",), include_stop_str_in_output=True))
    ),
    "tokens-schema": Case("tokens", (make_generate_step(constraint=JsonSchema(SCHEMA), max_tokens=40),)),
    "tokens-tags": Case("tokens", (make_generate_step(constraint=TAGS, max_tokens=60),)),
    "tokens-refused": Case(
        "tokens", (make_generate_step(TokenPrompt((10**6,)), max_tokens=1), make_generate_step(model="no-such-model"))
    ),
    "raw": Case(
        "chat",
        (
            make_generate_step(SEA, max_tokens=5),
            make_generate_step(TokenPrompt((504, 3774, 314)), max_tokens=5, logprobs=1),
        ),
    ),
    "raw-at-once": Case("chat", (make_generate_step(SEA, max_tokens=2, prompt_logprobs=0),)),
    "tokenize": Case("chat", (make_tokenize_step(SEA), make_tokenize_step(HELLO))),
    "open-embed": Case("chat", (describe_engine,), "embed"),
    "open-rerank": Case("chat", (describe_engine,), "rerank"),
    "open-classify": Case("chat", (describe_engine,), "classify"),
    "embed": Case(
        "chat",
        (
            make_embed_step("a cat", "a dog"),
            make_embed_step((2, 5, 6, 3)),
            make_embed_step(LONG, truncate=8),
            make_embed_step(LONG),
            make_embed_step("", dimensions=8),
        ),
        "embed",
    ),
    "embed-pooling": Case("chat", (make_passthrough_step("pooling", input="a cat"),), "embed"),
    "rerank": Case(
        "chat",
        (
            make_passthrough_step("rerank", **CATS),
            make_passthrough_step("rerank", **CATS, top_n=1),
            make_passthrough_step("rerank", query="cat"),
        ),
        "rerank",
    ),
    "rerank-score": Case(
        "chat",
        (
            make_passthrough_step("score", text_1="cat", text_2=CATS["documents"]),
            make_passthrough_step("score", text_1="cat", text_2=LONG),
        ),
        "rerank",
    ),
    "classify": Case(
        "chat",
        (make_passthrough_step("classify", input=["a cat", "a bill"]), make_passthrough_step("classify")),
        "classify",
    ),
    "classify-pooling": Case("chat", (make_passthrough_step("pooling", input="a cat"),), "classify"),
    "open-transcribe": Case("chat", (describe_engine,), "transcribe"),
    "transcribe": Case(
        "chat",
        (
            make_audio_step("transcribe"),
            make_audio_step("transcribe", response_format="verbose_json"),
            make_audio_step("transcribe", language="xx"),
            make_audio_step("transcribe", "no audio"),
            make_audio_step("translate"),
        ),
        "transcribe",
    ),
    "transcribe-stream": Case(
        "chat",
        (
            make_audio_step("transcribe", stream="true"),
            make_audio_step("transcribe", stream="true", stream_include_usage="true"),
        ),
        "transcribe",
    ),
}
