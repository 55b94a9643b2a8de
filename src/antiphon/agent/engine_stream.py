"""A prepared model call, and the reader of its chunks: waits for a slot of the model, then for the chunks.

    with stream:                               the timeouts run; an expired one is raised here as its error
        await stream.wait_for_slot(ticket)     unless the ticket is already running
        await stream.read_first(feed)          optional: until the first output
        await stream.read_all(feed, emit)      the token path, to the end
    stream.release_slot()                      always

`Run` and `CompletionRun` share this class; no other code awaits the chunks of an engine. They supply `feed`, which
turns chunks into output, and `emit`, which writes the output.
"""

import logging
import math
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from time import time
from typing import TypeVar

from msgspec import Struct
from msgspec.structs import replace

from antiphon.admission import Ticket
from antiphon.agent.moderation import ModerationPlan
from antiphon.agent.output_rules import RetryPolicy
from antiphon.agent.run_tracer import CallTrace, RunTracer
from antiphon.agent.timeouts import Timeouts, Watchdog
from antiphon.agent.tool_resolver import ToolCallResolver
from antiphon.core.encrypted_reasoning import Encrypt
from antiphon.core.prompt import Chunk, GenerationRequest, TokenCounts
from antiphon.engines.base import Engine, PushStream
from antiphon.errors import AntiphonError, Internal
from antiphon.parsers.base import AnswerEnded, Parser
from antiphon.tools.base import Rewriter

log = logging.getLogger(__name__)

T = TypeVar("T")

EmitText = Callable[[str], Awaitable[None]]
# Writes a summary of the reasoning piece by piece and returns the tokens of its model calls. Failures are not raised.
Summarise = Callable[[str, EmitText], Awaitable[TokenCounts]]


class ModelCall(Struct, frozen=True, kw_only=True):
    """Everything needed for one call of the model."""

    engine: Engine
    generation: GenerationRequest
    parser: Parser
    resolver: ToolCallResolver
    summarise_reasoning: bool = False  # emit reasoning as a summary
    write_summary: Summarise | None = None  # writes summaries of the reasoning; None: the model is not asked for any
    encrypt_reasoning: Encrypt | None = None  # also emit reasoning encrypted; None: not requested
    retry_policy: RetryPolicy | None = None  # rules for the output and retries; None: no rules
    ticket: Ticket | None = None
    rewriters: tuple[Rewriter, ...] = ()  # rewrite the output, one after the other
    timeouts: Timeouts = Timeouts()
    new_tracer: Callable[[str], RunTracer] | None = None  # creates the tracer for a response id; None: not traced
    logprobs_field: str | None = None  # request field that requires log probabilities; None: they are not required
    is_warmup: bool = False  # the engine only processes the prompt; its output is discarded
    moderation: ModerationPlan | None = None  # of the run that begins with this call; None: it is not moderated


class EngineStream(Watchdog):
    """The chunks of one model call at a time, under the watchdog."""

    __slots__ = ("_call", "_next_wait", "_source", "first_at", "trace")

    def __init__(self, call: ModelCall) -> None:
        Watchdog.__init__(self, call.timeouts)
        self._call = call
        self._source: AsyncGenerator[list[Chunk], None] | None = None
        self._next_wait = 1  # number of the next wait, see `Watchdog.wait_number`
        self.first_at: float | None = None  # None for an unstreamed response
        self.trace: CallTrace | None = None  # of the current call

    def switch_to(self, call: ModelCall) -> None:
        """Read another model call within the same total timeout.

        The slot of the previous call is released unless the new call has the same ticket.
        """
        if call.ticket is not self._call.ticket:
            self.release_slot()
        self._call, self._source = call, None

    @contextmanager
    def suspend_idle_timeout(self) -> Iterator[None]:
        """Wait for something other than the engine: only the total timeout applies. Use inside `with stream`."""
        self.set_silence_limit(math.inf)
        self.wait_number = 1
        try:
            yield
        finally:
            self.wait_number = 0

    @property
    def ticket(self) -> Ticket | None:
        """The ticket of the current call."""
        return self._call.ticket

    async def wait_for_slot(self, ticket: Ticket) -> None:
        """Wait until the ticket is admitted to the model."""
        self.wait_number = 1
        await ticket.wait_turn()
        self.wait_number = 0

    async def read_first(self, feed: Callable[[list[Chunk]], list[T]]) -> list[T]:
        """Return the first output, or an empty list if the engine ends without any. `read_all` continues from there."""
        source = self._open_source()
        try:
            self.wait_number = self._next_wait
            async for chunks in source:
                self.wait_number = 0
                self._next_wait += 1
                if output := feed(chunks):
                    self._on_first_output()
                    return output
                self.wait_number = self._next_wait
        except AnswerEnded:
            pass  # `read_all` meets the end again and stops there
        finally:
            self.wait_number = 0
        return []

    async def read_all(
        self, feed: Callable[[list[Chunk]], list[T]], emit: Callable[[list[T]], Awaitable[None] | None]
    ) -> None:
        """Read to the end: the token path. Writes are awaited if necessary, so a slow reader slows the engine down."""
        source, number = self._open_source(), self._next_wait
        try:
            self.wait_number = number
            async for chunks in source:
                self.wait_number = 0
                if output := feed(chunks):
                    if self.first_at is None:
                        self._on_first_output()
                    if (pending := emit(output)) is not None:
                        await pending
                elif isinstance(chunks, PushStream):
                    await self._read_pushed(chunks, feed, emit)
                if self.stop_error is not None:
                    raise self.stop_error
                self.wait_number = number = number + 1
        except AnswerEnded:
            pass  # closing the source cancels the engine's work
        finally:
            self.wait_number = 0
            await source.aclose()

    async def _read_pushed(
        self,
        push_stream: PushStream,
        feed: Callable[[list[Chunk]], list[T]],
        emit: Callable[[list[T]], Awaitable[None] | None],
    ) -> None:
        """The token path of engines that push chunks from a callback, without waking this task for each."""

        def receive(chunks: list[Chunk]) -> Awaitable[None] | None:
            self.wait_number += 1
            try:
                if not (output := feed(chunks)):
                    return None
                if self.first_at is None:
                    self._on_first_output()
                pending = emit(output)
            except Exception as error:  # raised in the awaiting task: the callback of the event loop cannot handle it
                return _raise_later(error)
            return None if pending is None else self._await_reader(pending)

        self.wait_number = 1
        await push_stream.push_to(receive)
        self.wait_number = 0

    async def _await_reader(self, pending: Awaitable[None]) -> None:
        """Wait for the reader; the idle timeout of the engine does not run meanwhile."""
        self.wait_number, wait_number = 0, self.wait_number
        await pending
        if self.stop_error is not None:
            raise self.stop_error
        self.wait_number = wait_number + 1

    async def close(self) -> None:
        """Cancel the engine's work and release the slot."""
        if self._source is not None:
            await self._source.aclose()
        self.release_slot()

    def release_slot(self) -> None:
        if self._call.ticket is not None:
            self._call.ticket.leave()

    def _open_source(self) -> AsyncGenerator[list[Chunk], None]:
        if self.stop_error is not None:
            raise self.stop_error
        if self._source is None:
            call = self._call
            # The start of an unstreamed response cannot be observed, so only the total timeout applies to it.
            self.set_silence_limit(math.inf if call.generation.buffered else call.timeouts.first)
            generation = call.generation
            if self.trace is not None:
                generation = replace(generation, note_attempt=self.trace.note_attempt)
            self._source = call.engine.generate(generation)
        return self._source

    def _on_first_output(self) -> None:
        if not self._call.generation.buffered:
            self.first_at = time()
        self.set_silence_limit(self._call.timeouts.idle)


async def _raise_later(error: Exception) -> None:
    raise error


async def catch_errors(work: Awaitable[object], name: str) -> AntiphonError | None:
    """Await `work` and return its failure as an error for the client. `name` identifies the work in the log."""
    try:
        await work
    except AntiphonError as error:
        return error
    except Exception:
        log.exception("%s failed with an unexpected exception", name)
        return Internal("The server made a mistake while it worked on this response.")
    return None
