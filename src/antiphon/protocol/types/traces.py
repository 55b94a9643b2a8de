"""The trace of a response for operators: an extension.

Times are in seconds; `began` is seconds since the epoch.
"""

from typing import Any, Literal

from msgspec import Struct

Json = dict[str, Any]


class Shown(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The prompt as sent to the engine."""

    kind: Literal["chat", "text", "tokens"]
    messages: list[Json] = []
    tools: list[Json] = []
    text: str = ""
    tokens: list[int] = []


class Heard(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The output of the engine: unparsed, except for the parts that the engine parsed itself."""

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
    prompt: Shown | None  # prompt and output are None if the trace is too large to store
    sampling: Json  # settings that differ from the engine's defaults
    output: Heard | None
    finish: str | None
    error: str | None
    usage: TurnUsage
    began: float
    waited: float | None  # time in the queue of the model
    first_token: float | None  # time since `began`
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
    whole: bool  # False: prompts and outputs were too large to store
    turns: list[TurnTrace]
    tools: list[ToolTrace]
