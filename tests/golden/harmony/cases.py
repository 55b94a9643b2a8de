"""Recorded and malformed Harmony streams, each with its source and the expected items.

An output is text with control tokens written by name, or token ids where those matter.
"""

import re
from collections.abc import Iterable, Sequence
from itertools import count
from pathlib import Path
from typing import Literal

import msgspec
from msgspec import Struct

from antiphon.agent.engine_stream import EngineStream, ModelCall
from antiphon.agent.model_call_run import ModelCallRun
from antiphon.agent.tool_resolver import ToolCallResolver
from antiphon.core.emitter.emitter import Emitter
from antiphon.core.emitter.fold import ResponseEnding
from antiphon.core.harmony import END_OF_TEXT, TOKEN_TEXTS, load_vocabulary
from antiphon.core.prompt import Chunk, GenerationRequest, Json, Sampling, TokenPrompt
from antiphon.engines.fake import FakeEngine
from antiphon.ids import Prefix
from antiphon.parsers.base import ParserOptions
from antiphon.parsers.harmony import HarmonyParser
from antiphon.protocol.types.items import FunctionCall, Message, OutputItem, Reasoning
from antiphon.protocol.types.response import Response
from antiphon.render.tools.offered_tools import OfferedTool

FOLDER = Path(__file__).parent
FILES = ("recorded", "malformed")
ENDINGS = {
    "stop": ResponseEnding(status="completed"),
    "length": ResponseEnding(status="incomplete", reason="max_output_tokens"),
}

_numbers = count()
_CONTROLS = {name: token for token, name in TOKEN_TEXTS.items()} | {"<|endoftext|>": END_OF_TEXT}
_SPLIT = re.compile(f"({'|'.join(map(re.escape, _CONTROLS))})")


class Case(Struct, kw_only=True):
    name: str
    source: str
    output: str | list[int]
    tools: list[str] = []
    builtins: list[str] = []  # recipients that are tools of the server
    prompt: str = "<|start|>assistant"  # the end of the prompt
    finish: Literal["stop", "length"] = "stop"
    reasoning_tokens: int = 0
    items: list[Json] = []


def encode_tokens(text: str | Sequence[int]) -> tuple[int, ...]:
    """Encode text in which control tokens are written by name."""
    if not isinstance(text, str):
        return tuple(text)
    vocab = load_vocabulary()
    parts = [part for part in _SPLIT.split(text) if part]
    return tuple(
        [token for part in parts for token in ([_CONTROLS[part]] if part in _CONTROLS else vocab.encode(part))]
    )


def decode_tokens(ids: Sequence[int]) -> str:
    """Decode tokens to text in which control tokens are written by name."""
    vocab = load_vocabulary()
    names = {token: name.encode() for name, token in _CONTROLS.items()}
    parts = [names.get(token) or vocab.decode_token(token) for token in ids]
    return b"".join([part.encode() if isinstance(part, str) else part for part in parts]).decode()


def load_cases(file: str) -> list[Case]:
    return msgspec.json.decode((FOLDER / f"{file}.json").read_bytes(), type=list[Case])


def make_schema(name: str) -> Json:
    parameters = {"type": "object", "properties": {"location": {"type": "string"}}}
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


def make_parser_options(case: Case) -> ParserOptions:
    namespaces: dict[str, Json] = {name.partition(".")[0]: {} for name in case.builtins}
    return ParserOptions(tools={**{name: make_schema(name) for name in case.tools}, **namespaces})


def run_case(case: Case, pieces: Iterable[Sequence[int]]) -> tuple[Response, int]:
    """Return the response and the number of its reasoning tokens."""
    prompt = TokenPrompt(encode_tokens(case.prompt))
    parser = HarmonyParser(prompt, make_parser_options(case))
    offers = {name: OfferedTool("function", name) for name in (*case.tools, *case.builtins)}
    emitter = Emitter(Response(id="resp_1", created_at=1, model="gpt-oss"), _new_id)
    request = GenerationRequest(model="gpt-oss", prompt=prompt, sampling=Sampling())
    model_call = ModelCall(engine=FakeEngine(), generation=request, parser=parser, resolver=ToolCallResolver(offers))
    run = ModelCallRun(model_call, EngineStream(model_call), emitter.feed, emitter.feed_text)
    emitter.emit_created()
    emitter.emit_in_progress()
    for piece in pieces:
        run.feed([Chunk(tokens=tuple(piece))])
    run.feed([Chunk(finish=case.finish)])
    run.end_output()
    emitter.finish(ENDINGS[case.finish], None, 2)
    return emitter.response, parser.reasoning_tokens


def summarise_output(response: Response) -> list[Json]:
    return [_summarise_item(item) for item in response.output]


def _summarise_item(item: OutputItem) -> Json:
    match item:
        case Message():
            text = "".join([getattr(part, "text", "") for part in item.content])
            return {"message": text, "phase": item.phase or None, "status": item.status}
        case Reasoning():
            reasoning = "".join([part.text for part in item.content or ()])
            return {"reasoning": reasoning, "status": item.status}
        case FunctionCall():
            return {"call": item.name, "arguments": item.arguments, "status": item.status}
    raise AssertionError(f"{item} is not an item that a model writes")


def _new_id(prefix: Prefix) -> str:
    return f"{prefix}_{next(_numbers)}"
