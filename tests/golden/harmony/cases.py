"""Recorded and broken Harmony streams, each with its source and the items that come of it.

An output is written as text, control tokens by their names, or as token ids where those matter.
"""

import re
from collections.abc import Iterable, Sequence
from itertools import count
from pathlib import Path
from typing import Literal

import msgspec
from msgspec import Struct

from antiphon.agent.model_call import Plan
from antiphon.agent.tool_resolver import Declared
from antiphon.agent.turn import Turn
from antiphon.core.emitter.emitter import Emitter
from antiphon.core.emitter.fold import Ending
from antiphon.core.harmony import END_OF_TEXT, NAMES, vocabulary
from antiphon.core.prompt import Chunk, Json, Sampling, TokenPrompt, Work
from antiphon.engines.fake import FakeEngine
from antiphon.ids import Prefix
from antiphon.parsers.base import Reading
from antiphon.parsers.harmony.parser import HarmonyParser
from antiphon.protocol.types.items import FunctionCall, Message, OutputItem, Reasoning
from antiphon.protocol.types.response import Response
from antiphon.render.tools.declarations import Offer

FOLDER = Path(__file__).parent
FILES = ("recorded", "malformed")
ENDINGS = {"stop": Ending(status="completed"), "length": Ending(status="incomplete", reason="max_output_tokens")}

_numbers = count()
_CONTROLS = {name: token for token, name in NAMES.items()} | {"<|endoftext|>": END_OF_TEXT}
_SPLIT = re.compile(f"({'|'.join(map(re.escape, _CONTROLS))})")


class Case(Struct, kw_only=True):
    name: str
    source: str
    output: str | list[int]
    tools: list[str] = []
    builtins: list[str] = []  # recipients that are tools of the server
    prompt: str = "<|start|>assistant"  # its end
    finish: Literal["stop", "length"] = "stop"
    reasoning_tokens: int = 0
    items: list[Json] = []


def tokens(text: str | Sequence[int]) -> tuple[int, ...]:
    """Of text with control tokens in it, by their names."""
    if not isinstance(text, str):
        return tuple(text)
    known = vocabulary()
    parts = [part for part in _SPLIT.split(text) if part]
    return tuple(
        [token for part in parts for token in ([_CONTROLS[part]] if part in _CONTROLS else known.tokens(part))]
    )


def spelled(ids: Sequence[int]) -> str:
    """The other way round."""
    known = vocabulary()
    names = {token: name.encode() for name, token in _CONTROLS.items()}
    words = [names.get(token) or known.word(token) for token in ids]
    return b"".join([word.encode() if isinstance(word, str) else word for word in words]).decode()


def load(file: str) -> list[Case]:
    return msgspec.json.decode((FOLDER / f"{file}.json").read_bytes(), type=list[Case])


def schema(name: str) -> Json:
    parameters = {"type": "object", "properties": {"location": {"type": "string"}}}
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


def reading(case: Case) -> Reading:
    spaces: dict[str, Json] = {name.partition(".")[0]: {} for name in case.builtins}
    return Reading(tools={**{name: schema(name) for name in case.tools}, **spaces})


def play(case: Case, pieces: Iterable[Sequence[int]]) -> tuple[Response, int]:
    """The response, and the tokens of its reasoning."""
    prompt = TokenPrompt(tokens(case.prompt))
    parser = HarmonyParser(prompt, reading(case))
    offers = {name: Offer("function", name) for name in (*case.tools, *case.builtins)}
    emitter = Emitter(Response(id="resp_1", created_at=1, model="gpt-oss"), _new_id)
    work = Work(model="gpt-oss", prompt=prompt, sampling=Sampling())
    plan = Plan(engine=FakeEngine(), work=work, parser=parser, declared=Declared(offers))
    turn = Turn(plan, emitter)
    emitter.created()
    emitter.in_progress()
    for piece in pieces:
        turn.feed([Chunk(tokens=tuple(piece))])
    turn.feed([Chunk(finish=case.finish)])
    turn.end()
    emitter.finish(ENDINGS[case.finish], None, 2)
    return emitter.response, parser.reasoning_tokens


def told(response: Response) -> list[Json]:
    return [_told(item) for item in response.output]


def _told(item: OutputItem) -> Json:
    match item:
        case Message():
            said = "".join([getattr(part, "text", "") for part in item.content])
            return {"message": said, "phase": item.phase or None, "status": item.status}
        case Reasoning():
            thought = "".join([part.text for part in item.content or ()])
            return {"reasoning": thought, "status": item.status}
        case FunctionCall():
            return {"call": item.name, "arguments": item.arguments, "status": item.status}
    raise AssertionError(f"{item} is not of a kind that a model says")


def _new_id(prefix: Prefix) -> str:
    return f"{prefix}_{next(_numbers)}"
