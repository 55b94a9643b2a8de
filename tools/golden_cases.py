"""What engines are asked for golden recordings: each case is a name, a level, and steps whose results are kept.

A case is for one kind of models: those that generate, or those that only embed, rank, classify or hear.
The same code asks the real engine when it is recorded and the recording when it is replayed. Nothing is left to chance,
so that a new recording of the same engine says the same.
"""

from collections.abc import Awaitable, Callable, Container
from contextlib import aclosing
from typing import Any, Literal

import msgspec
from msgspec import Struct

from antiphon.core.prompt import (
    ChatPrompt,
    Chunk,
    Grammar,
    Json,
    JsonSchema,
    Prompt,
    Sampling,
    Segment,
    StructuralTag,
    TextPrompt,
    TokenPrompt,
    Work,
)
from antiphon.engines.base import Deed
from antiphon.engines.http.base import HttpEngine
from antiphon.errors import AntiphonError
from tools.audio import BOUNDARY, form, wav

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
# A tenth of a second of one note, in letters alone, so that a recording can be read.
NOTE = wav(b"0:DNTNJ@6,$ $." * 58)
SEA = TextPrompt((Segment("The sea is", control=True),))


class Case(Struct, frozen=True):
    level: Literal["chat", "tokens"]
    steps: tuple[Step, ...]
    kind: Deed = "generate"

    @property
    def opening(self) -> str:
        """The case with the first questions to an engine, which every case asks."""
        if self.kind != "generate":
            return f"open-{self.kind}"
        return "open" if self.level == "chat" else "open-tokens"


def kind_of(does: Container[Deed]) -> Deed:
    """The most that a model does: who embeds can rank by it, who ranks calls that classifying."""
    kinds: tuple[Deed, ...] = ("generate", "embed", "rerank", "transcribe")
    return next((deed for deed in kinds if deed in does), "classify")


def says(prompt: Prompt = HELLO, **wishes: Any) -> Step:
    """All chunks of an answer, and the error that ended it, if one did."""
    outer = {name: wishes.pop(name) for name in list(wishes) if name in Work.__struct_fields__}
    sampling = Sampling(**{"max_tokens": 12, "temperature": 0.0, **wishes})

    async def ask(engine: HttpEngine) -> Any:
        work = Work(**{"model": engine.models()[0].id, "prompt": prompt, "sampling": sampling, **outer})
        heard: list[Chunk] = []
        try:
            async with aclosing(engine.generate(work)) as lists:
                async for chunks in lists:
                    heard += chunks
        except AntiphonError as error:
            return {"chunks": [told(chunk) for chunk in heard], "error": wrong(error)}
        return {"chunks": [told(chunk) for chunk in heard]}

    return ask


async def opens(engine: HttpEngine) -> Any:
    """What it tells of itself."""
    model = engine.models()[0].id
    able = await engine.capabilities(model)
    shown = {"version": able.version, "context": able.context, "slots": able.slots, "counts": able.counts}
    return {
        **shown,
        "model": model,
        "takes": sorted(able.takes),
        "does": sorted(able.does),
        "lacks": dict(sorted(able.lacks.items())),
        "parsers": able.parsers,
    }


def tokenizes(prompt: Prompt) -> Step:
    async def ask(engine: HttpEngine) -> Any:
        model = engine.models()[0].id
        tokens = await engine.tokenize(model, prompt)
        return {
            "tokens": tokens,
            "count": await engine.count(model, prompt),
            "text": await engine.detokenize(model, tokens),
        }

    return ask


def embeds(*inputs: str | tuple[int, ...], **wishes: Any) -> Step:
    async def ask(engine: HttpEngine) -> Any:
        try:
            return msgspec.to_builtins(await engine.embed(engine.models()[0].id, inputs, **wishes))
        except AntiphonError as error:
            return {"error": wrong(error)}

    return ask


def relays(deed: Deed, **asked: Any) -> Step:
    """What comes back, or the error."""

    async def ask(engine: HttpEngine) -> Any:
        model = engine.models()[0].id
        try:
            relayed = await engine.relay(model, deed, msgspec.json.encode({"model": model, **asked}))
        except AntiphonError as error:
            return {"error": wrong(error)}
        return {"media_type": relayed.media_type, "body": msgspec.json.decode(relayed.body)}

    return ask


def hears(deed: Deed, audio: str = NOTE, **fields: Any) -> Step:
    """What comes back for a file of audio, or the error."""

    async def ask(engine: HttpEngine) -> Any:
        model = engine.models()[0].id
        body = form({"model": model, "language": "en", "temperature": 0, "max_completion_tokens": 3, **fields}, audio)
        try:
            relayed = await engine.relay(model, deed, body.encode(), f"multipart/form-data; boundary={BOUNDARY}")
        except AntiphonError as error:
            return {"error": wrong(error)}
        return {"media_type": relayed.media_type, "body": relayed.body.decode()}

    return ask


def told(chunk: Chunk) -> Json:
    """Without what is not there."""
    plain: Json = msgspec.to_builtins(chunk)
    return {name: value for name, value in plain.items() if value not in ("", 0, None, ())}


def wrong(error: AntiphonError) -> Json:
    return {"status": error.status, "code": error.code, "param": error.param, "message": error.message}


CASES: dict[str, Case] = {
    "open": Case("chat", (opens,)),
    "open-tokens": Case("tokens", (opens,)),
    "chat": Case("chat", (says(), says(max_tokens=3))),
    "chat-logprobs": Case("chat", (says(logprobs=2, max_tokens=4),)),
    "chat-ids": Case("chat", (says(return_token_ids=True, max_tokens=4),)),
    "chat-stop": Case("chat", (says(stop=("h",)), says(stop=("h",), include_stop_str_in_output=True))),
    "chat-schema": Case("chat", (says(constraint=JsonSchema(SCHEMA), max_tokens=40),)),
    "chat-regex": Case("chat", (says(constraint=Grammar("regex", "[0-9]{3}")),)),
    "chat-grammar": Case("chat", (says(constraint=Grammar("gbnf", 'root ::= "yes" | "no"')),)),
    "chat-tags": Case("chat", (says(constraint=TAGS, max_tokens=60),)),
    "chat-tools": Case("chat", (says(WEATHER, max_tokens=120),)),
    "chat-at-once": Case("chat", (says(prompt_logprobs=0, max_tokens=3), says(best_of=2, max_tokens=3))),
    "chat-refused": Case(
        "chat",
        (
            says(ChatPrompt(({"role": "user", "content": "word " * 5000},)), max_tokens=None),
            says(model="no-such-model"),
            says(constraint=Grammar("regex", "(")),
        ),
    ),
    "tokens": Case("tokens", (says(), says(max_tokens=3, return_token_ids=True))),
    "tokens-logprobs": Case("tokens", (says(logprobs=2, max_tokens=4),)),
    "tokens-stop": Case("tokens", (says(stop=("h",)), says(stop=("h",), include_stop_str_in_output=True))),
    "tokens-schema": Case("tokens", (says(constraint=JsonSchema(SCHEMA), max_tokens=40),)),
    "tokens-tags": Case("tokens", (says(constraint=TAGS, max_tokens=60),)),
    "tokens-refused": Case("tokens", (says(TokenPrompt((10**6,)), max_tokens=1), says(model="no-such-model"))),
    "raw": Case("chat", (says(SEA, max_tokens=5), says(TokenPrompt((504, 3774, 314)), max_tokens=5, logprobs=1))),
    "raw-at-once": Case("chat", (says(SEA, max_tokens=2, prompt_logprobs=0),)),
    "tokenize": Case("chat", (tokenizes(SEA), tokenizes(HELLO))),
    "open-embed": Case("chat", (opens,), "embed"),
    "open-rerank": Case("chat", (opens,), "rerank"),
    "open-classify": Case("chat", (opens,), "classify"),
    "embed": Case(
        "chat",
        (
            embeds("a cat", "a dog"),
            embeds((2, 5, 6, 3)),
            embeds(LONG, truncate=8),
            embeds(LONG),
            embeds("", dimensions=8),
        ),
        "embed",
    ),
    "embed-pooling": Case("chat", (relays("pooling", input="a cat"),), "embed"),
    "rerank": Case(
        "chat", (relays("rerank", **CATS), relays("rerank", **CATS, top_n=1), relays("rerank", query="cat")), "rerank"
    ),
    "rerank-score": Case(
        "chat",
        (relays("score", text_1="cat", text_2=CATS["documents"]), relays("score", text_1="cat", text_2=LONG)),
        "rerank",
    ),
    "classify": Case("chat", (relays("classify", input=["a cat", "a bill"]), relays("classify")), "classify"),
    "classify-pooling": Case("chat", (relays("pooling", input="a cat"),), "classify"),
    "open-transcribe": Case("chat", (opens,), "transcribe"),
    "transcribe": Case(
        "chat",
        (
            hears("transcribe"),
            hears("transcribe", response_format="verbose_json"),
            hears("transcribe", language="xx"),
            hears("transcribe", "no audio"),
            hears("translate"),
        ),
        "transcribe",
    ),
    "transcribe-stream": Case(
        "chat",
        (hears("transcribe", stream="true"), hears("transcribe", stream="true", stream_include_usage="true")),
        "transcribe",
    ),
}
