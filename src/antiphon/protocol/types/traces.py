"""What went on in a response, as an operator sees it: an extension. Times are seconds, `began` since the epoch."""

from typing import Any, Literal

from msgspec import Struct

Json = dict[str, Any]


class Shown(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A prompt, as the engine got it."""

    kind: Literal["chat", "text", "tokens"]
    messages: list[Json] = []
    tools: list[Json] = []
    text: str = ""
    tokens: list[int] = []


class Heard(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the engine said, unparsed but for what it parsed itself."""

    text: str = ""
    thought: str = ""
    refusal: str = ""
    calls: list[Json] = []
    tokens: list[int] = []


class TurnUsage(Struct, frozen=True, kw_only=True):
    input_tokens: int
    cached_tokens: int
    output_tokens: int
    reasoning_tokens: int


class TurnTrace(Struct, frozen=True, kw_only=True):
    engine: str
    model: str
    prompt: Shown | None  # None, like all words, where they are too many to be kept
    sampling: Json  # what is not as the engine has it
    output: Heard | None
    finish: str | None
    error: str | None
    usage: TurnUsage
    began: float
    waited: float | None  # for a place at the model
    first_token: float | None  # since it began
    seconds: float | None


class ToolTrace(Struct, frozen=True, kw_only=True):
    kind: str
    id: str
    name: str
    server: str | None
    arguments: str | None
    outcome: str
    began: float
    seconds: float | None


class ResponseTrace(Struct, frozen=True, kw_only=True):
    id: str
    object: Literal["response.trace"] = "response.trace"
    status: str
    error: str | None
    began: float
    seconds: float | None
    whole: bool  # False: the words were too many to be kept
    turns: list[TurnTrace]
    tools: list[ToolTrace]
