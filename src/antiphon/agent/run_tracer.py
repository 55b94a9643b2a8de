"""Sees what a run or an exchange does, for those who want to know: its calls of the model, its tools, and how long each
took. As a rule nobody does: then there is no witness, and nothing here costs anything.

    witness = watch(response_id)                 Plan.watch
    call = witness.call(engine, work)            the current span until its end, so that the engine can be told
    feed = call.heard(feed)                      what the engine says is kept, if that is wanted
    call.end(finish, counts, error)
    with witness.tool(kind, use) as tool: …
    witness.end(outcome)
"""

from collections.abc import Callable
from time import time
from typing import Self, TypeVar

from msgspec import Struct
from msgspec.json import encode

from antiphon.agent.otel_attributes import asked, messages, said
from antiphon.core.prompt import Chunk, Counts, Finish, Work
from antiphon.observe.spans import Tracer, Value, Watched
from antiphon.tools.base import Use

T = TypeVar("T")

_MOST_CHUNKS = 100_000  # of one call; what comes after them is not kept
_LONGEST = 32 * 1024  # characters of an attribute; collectors refuse what is much longer


class Outcome(Struct, frozen=True, kw_only=True):
    """How all of it ended."""

    status: str
    error: str = ""  # its code
    model: str = ""
    counts: Counts = Counts()


class Call:
    """One call of the model."""

    def __init__(self, engine: str, work: Work, keeps: bool, tracer: Tracer | None) -> None:
        self.engine = engine
        self.work = work
        self.began = time()
        self.ready_at: float | None = None  # it had its place at the model
        self.first_at: float | None = None
        self.ended_at: float | None = None
        self.finish: Finish | None = None
        self.counts = Counts()
        self.error = ""
        self.chunks: list[Chunk] = []
        self._tracer = tracer
        self._keeps = keeps or (tracer is not None and tracer.content)
        name, attributes = asked(engine, work)
        self._span = None if tracer is None else Watched(tracer, name, "client", attributes).__enter__()

    def end(self, finish: Finish | None, counts: Counts, error: BaseException | None) -> None:
        self.ended_at, self.finish, self.counts = time(), finish, counts
        self.error = "" if error is None else getattr(error, "code", None) or type(error).__name__
        if self._span is not None:
            self._tell(self._span)
            self._span.__exit__(None, None, None)

    def ready(self) -> None:
        self.ready_at = time()

    def heard(self, feed: Callable[[list[Chunk]], list[T]]) -> Callable[[list[Chunk]], list[T]]:
        def hear(chunks: list[Chunk]) -> list[T]:
            if self.first_at is None and chunks:
                self.first_at = time()
            if self._keeps and len(self.chunks) < _MOST_CHUNKS:
                self.chunks += chunks
            return feed(chunks)

        return hear

    def _tell(self, span: Watched) -> None:
        attributes = span.span.attributes
        attributes |= _used(self.counts)
        attributes["gen_ai.response.model"] = self.work.model
        if self.finish is not None:
            attributes["gen_ai.response.finish_reasons"] = [self.finish]
        if self.first_at is not None:
            attributes["gen_ai.response.time_to_first_chunk"] = self.first_at - self.began
        if self._tracer is not None and self._tracer.content:
            attributes["gen_ai.input.messages"] = _bounded(messages(self.work.prompt))
            attributes["gen_ai.output.messages"] = _bounded(said(self.chunks, self.finish))
        _fail(span, self.error)


class ToolCall:
    """One call of a tool that the server runs."""

    def __init__(self, kind: str, use: Use, tracer: Tracer | None) -> None:
        self.kind = kind
        self.use = use
        self.began = time()
        self.ended_at: float | None = None
        self.outcome = ""
        attributes: dict[str, Value] = {
            "gen_ai.operation.name": "execute_tool",
            "gen_ai.tool.name": use.name,
            "gen_ai.tool.type": "extension" if kind == "mcp" else "function",
            "gen_ai.tool.call.id": use.id,
        }
        if tracer is not None and tracer.content:
            attributes["gen_ai.tool.call.arguments"] = use.arguments[:_LONGEST]
        self._span = None if tracer is None else Watched(tracer, f"execute_tool {use.name}", "internal", attributes)

    def __enter__(self) -> Self:
        if self._span is not None:
            self._span.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        self.ended_at = time()
        if self._span is not None:
            _fail(self._span, self.outcome if self.outcome != "completed" else "")
            self._span.__exit__(kind, error, trace)


class Witness:
    """`keeps`: what models said is wanted too. `on_end` is given it all at the end."""

    def __init__(self, response_id: str, tracer: Tracer | None, keeps: bool, on_end: "OnEnd | None" = None) -> None:
        self.id = response_id
        self.began = time()
        self.ended_at: float | None = None
        self.calls: list[Call] = []
        self.tools: list[ToolCall] = []
        self.outcome: Outcome | None = None
        self._tracer = tracer
        self._keeps = keeps
        self._on_end = on_end
        self._span: Watched | None = None
        if tracer is not None:
            named: dict[str, Value] = {"gen_ai.operation.name": "invoke_agent", "gen_ai.provider.name": "antiphon"}
            if response_id:
                named["gen_ai.response.id"] = response_id
            self._span = Watched(tracer, "invoke_agent", "internal", named)
            self._span.__enter__()

    def call(self, engine: str, work: Work) -> Call:
        self.calls.append(call := Call(engine, work, self._keeps, self._tracer))
        return call

    def tool(self, kind: str, use: Use) -> ToolCall:
        self.tools.append(tool := ToolCall(kind, use, self._tracer))
        return tool

    def end(self, outcome: Outcome) -> None:
        """Once; what comes first counts."""
        if self.outcome is not None:
            return
        self.outcome, self.ended_at = outcome, time()
        if (span := self._span) is not None:
            attributes = span.span.attributes
            attributes |= _used(outcome.counts)
            attributes["antiphon.response.status"] = outcome.status
            if outcome.model:
                attributes["gen_ai.request.model"] = attributes["gen_ai.response.model"] = outcome.model
            _fail(span, outcome.error)
            span.__exit__(None, None, None)
        if self._on_end is not None:
            self._on_end(self)


OnEnd = Callable[[Witness], None]


def _used(counts: Counts) -> dict[str, Value]:
    return {
        "gen_ai.usage.input_tokens": counts.input_tokens,
        "gen_ai.usage.cache_read.input_tokens": counts.cached_tokens,
        "gen_ai.usage.output_tokens": counts.output_tokens,
    }


def _fail(span: Watched, error: str) -> None:
    if error:
        span.span.error = error
        span.span.attributes["error.type"] = error


def _bounded(told: object) -> str:
    try:
        return encode(told)[:_LONGEST].decode("utf-8", "ignore")
    except (TypeError, ValueError):  # what cannot be told is no fault of the response
        return ""
