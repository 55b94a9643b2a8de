"""How a response came about: the responses that it is connected with, its timing and its prompt. Extensions."""

from typing import Literal

from msgspec import Struct

from antiphon.protocol.types.operations.activity import ResponseSummary

SpanKind = Literal["queue", "attempt", "prefill", "decode", "tool", "write", "wait", "output"]


class ResponseTree(Struct, frozen=True, kw_only=True):
    """The ancestors of a response, their descendants, and the responses of the same conversation, oldest first.

    `previous_response_id` and `conversation` of the entries connect them.
    """

    id: str
    object: Literal["response.tree"] = "response.tree"
    data: list[ResponseSummary]
    has_more: bool  # the tree is larger


class TimeSpan(Struct, frozen=True, kw_only=True):
    """A part of the work on a response; parts may overlap. `began` is in seconds since the epoch.

    queue: in the queue of the model; attempt: an engine that failed; prefill: until the first token; decode: until the
    last one; tool: a call that the server has run; write: of the store. Without a trace: wait, until the first output;
    output, until the end.
    """

    kind: SpanKind
    name: str  # of the engine, the tool, or what was written
    began: float
    seconds: float
    error: str | None


class ResponseTiming(Struct, frozen=True, kw_only=True):
    """The phases of a response with their times, without its contents."""

    id: str
    object: Literal["response.timing"] = "response.timing"
    traced: bool  # false: there is no trace of it in this process
    spans: list[TimeSpan]  # in the order of their beginnings


class PromptSegment(Struct, frozen=True, kw_only=True):
    """A stretch of a rendered prompt; of a chat, the JSON of a tool or a message."""

    text: str
    control: bool  # of the template: only here can text be control tokens
    cached: bool | None  # null: it is not known where the cached prefix ends


class RenderedPrompt(Struct, frozen=True, kw_only=True):
    """The prompt of the first model call. `chat`: the engine renders it from the tools and messages."""

    id: str
    object: Literal["response.prompt"] = "response.prompt"
    model: str
    engine: str
    kind: Literal["chat", "text", "tokens"]
    segments: list[PromptSegment]
    input_tokens: int | None  # as the engine has counted them; null without usage
    cached_tokens: int | None
    cached_prefix: Literal["exact", "approximate", "unknown"]  # whether the end of the cached prefix is known
    changeable: bool  # its conversation may have changed since
