"""Compaction of a history: the model writes a summary, and the retained parts beside it are cut to fit.

    what is restored  ≤  a quarter of what it replaces

Both sides are counted as prompts of this model, without the parts that stay (instructions, the tail). A user message is
never shorter than its first characters, and a summary may always have MIN_SUMMARY_TOKENS, so for a short history, or
one that consists mostly of user messages, more than a quarter may remain.

With `context_management`, a prompt above its threshold is compacted before the model is called. The compaction item is
part of the response's own output, before the answer, and also replaces the request's input. It is emitted when it is
complete: a failed summary leaves no trace, and the response continues with its full history if that fits. A client that
sends a compaction trigger requests the item itself: it gets the item or an error, and no answer.
"""

import logging
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from msgspec import Struct
from msgspec.structs import replace

from antiphon.agent.completion_run import CompletionRun
from antiphon.agent.engine_stream import ModelCall
from antiphon.agent.tool_loop import ToolLoop
from antiphon.core.deltas import ServerItemDone, ServerItemStarted, TurnEnded
from antiphon.core.dialects.dialect import PlainTextEmitter, PlainTextResult
from antiphon.core.history import compaction_plan
from antiphon.core.history.compaction import CompactionMemory, expand_memory, user_message
from antiphon.core.history.compaction_plan import CompactionPlan, build_memory, excess_chars, plan_compaction
from antiphon.core.prompt import TokenCounts
from antiphon.core.usage import sum_counts
from antiphon.errors import AntiphonError, BadRequest, EngineFailed, MissingParameter
from antiphon.protocol.decoding.codec import DecodedRequest
from antiphon.protocol.types.items import Compaction, CompactionTrigger, InputItem
from antiphon.protocol.types.request import CreateResponse
from antiphon.protocol.types.response import ReasoningConfig
from antiphon.service.keyring import Keyring
from antiphon.service.prompting.prepared_request import PreparedRequest, measure_bytes

log = logging.getLogger(__name__)

MIN_SUMMARY_TOKENS, MAX_SUMMARY_TOKENS = 64, 2000  # tokens of a summary
_SHRINK_FACTOR: Final = 4  # to a quarter
_REASONING_TOKENS: Final = 1024  # extra output tokens for models that reason anyway
_INSTRUCTION_TOKENS: Final = 256  # upper bound for the instruction below
_MAX_FIT_ATTEMPTS: Final = 8
_INSTRUCTION: Final = (
    "Everything before this message is about to be forgotten, except the user's own messages. Write the summary that "
    "will take its place, in at most {words} words. Do not answer and do not call anything. Say what was found out, "
    "done and decided, with names, numbers, paths and results exactly as they were; which tools were called and what "
    "came of it; what is still open, and what was to be done next. Write nothing but the summary."
)

OpenRun = Callable[[PreparedRequest], CompletionRun]  # with the plain text dialect

_DEFAULT_SHARE: Final = 0.75  # of the context, if the request names no threshold


class CompactionPlanner(Protocol):
    """The part of the planner that compaction uses."""

    async def plan(self, tenant: str, decoded: DecodedRequest) -> PreparedRequest: ...

    def admit(self, prepared_request: PreparedRequest, patient: bool = False) -> ModelCall: ...


async def compact(
    planner: CompactionPlanner, source: PreparedRequest, open_run: OpenRun, *, answering: bool
) -> tuple[CompactionMemory, TokenCounts | None]:
    """Compact the history of a request, with its model and instructions. `answering`: the model answers afterwards.

    Also returns the tokens of the summary; None if there was nothing to summarise and the model was not called.
    Raises the errors of the engine, and EngineFailed if the model returns no summary.
    """
    partition = plan_compaction(source.prepared.history.items, answering)
    if partition.is_empty:
        return build_memory(partition, "", 0), None
    return await _CompactionBuilder(planner, source, open_run, partition).run()


class _CompactionBuilder(Struct, eq=False):
    _planner: CompactionPlanner
    _source: PreparedRequest
    _open_run: OpenRun
    _partition: CompactionPlan

    async def run(self) -> tuple[CompactionMemory, TokenCounts]:
        partition = self._partition
        before = await self._count_tokens([*partition.to_summarise, *partition.tail])
        fixed = await self._count_fixed()
        limit = fixed + (before - fixed) // _SHRINK_FACTOR
        minimum = await self._count_after(build_memory(partition, ".", 0))
        # half of what remains, if the user messages could use the other half
        remaining = (limit - minimum) // (2 if excess_chars(partition) else 1)
        max_tokens = min(max(remaining, MIN_SUMMARY_TOKENS), MAX_SUMMARY_TOKENS)
        summary = await self._request_summary(before, max_tokens)
        text = summary.text.strip()
        # measured on the summary itself
        chars_per_token = len(text) / max(1, await self._count_after(build_memory(partition, text, 0)) - minimum)
        text = _cut(f"{text} …" if summary.truncated else text, int(max_tokens * chars_per_token))
        room = min(excess_chars(partition), int(max(0, limit - minimum) * chars_per_token) - len(text))
        return await self._fit(text, max(0, room), limit, chars_per_token), summary.counts

    async def _request_summary(self, before: int, max_tokens: int) -> PlainTextResult:
        """Request the summary, with one retry that leaves tokens for reasoning.

        The retry is made if the model was cut before any text, or if the server rejects the effort "none": some models
        cannot stop reasoning, and some servers do not know that effort.
        """
        first_counts = TokenCounts()
        try:
            summary = await self._summarise(before, max_tokens)
            retry, first_counts = summary.truncated and not summary.text.strip(), summary.counts
        except BadRequest as error:
            if type(error) is not BadRequest or "reasoning.effort" not in self._source.capabilities.supported_fields:
                raise
            retry = True
        if retry:
            summary = await self._summarise(before, max_tokens, _REASONING_TOKENS)
            summary = replace(summary, counts=sum_counts([first_counts, summary.counts]))
        if not summary.text.strip():
            raise EngineFailed("The model returned no summary of the conversation.")
        return summary

    async def _summarise(self, before: int, summary_tokens: int, reasoning_tokens: int = 0) -> PlainTextResult:
        return await self._open_run(await self._prepare_summary(before, summary_tokens, reasoning_tokens)).fold_text()

    async def _fit(self, text: str, room: int, limit: int, chars_per_token: float) -> CompactionMemory:
        """Shorten until it fits: first the ends of the user messages, then the summary."""
        shortest = int(MIN_SUMMARY_TOKENS * chars_per_token)
        for _ in range(_MAX_FIT_ATTEMPTS):
            memory = build_memory(self._partition, text, room)
            over = await self._count_after(memory) - limit
            if over <= 0 or not (room or len(text) > shortest):
                return memory
            surplus = int(over * chars_per_token * 1.2) + 8
            if room:
                room = max(0, room - surplus)
            else:
                text = _cut(text, max(shortest, len(text) - surplus))
        return build_memory(self._partition, _cut(text, shortest), 0)

    async def _count_fixed(self) -> int:
        """Count the tokens of the parts that stay."""
        fixed = [*self._partition.directives, *self._partition.tail]
        if not fixed and not self._source.decoded.request.instructions:
            return 0
        return await self._count_tokens(fixed or [user_message(".")])

    async def _count_after(self, memory: CompactionMemory) -> int:
        return await self._count_tokens([*self._partition.directives, *expand_memory(memory)])

    async def _count_tokens(self, items: Sequence[InputItem]) -> int:
        return await (await self._prepare(self._make_request(items))).count_or_estimate()

    async def _prepare_summary(self, before: int, summary_tokens: int, reasoning_tokens: int) -> PreparedRequest:
        """Prepare the request for a summary, with as much of the history as the context has room for."""
        capabilities, items = self._source.capabilities, self._partition.to_summarise
        output_tokens = summary_tokens + reasoning_tokens
        context = capabilities.context
        if context is not None and (input_limit := context - output_tokens - _INSTRUCTION_TOKENS) < before:
            items = compaction_plan.select_newest(items, max(0.0, input_limit) / before * 0.9)
        request = self._make_request([*items, user_message(_INSTRUCTION.format(words=summary_tokens * 2 // 3))])
        request.max_output_tokens = output_tokens
        if "reasoning.effort" in capabilities.supported_fields and not reasoning_tokens:
            request.reasoning = ReasoningConfig(effort="none")
        return await self._prepare(request)

    def _make_request(self, items: Sequence[InputItem]) -> CreateResponse:
        """Build a request without tools, even those that an item declares. Its oldest items are truncated if needed."""
        original = self._source.decoded.request
        return CreateResponse(
            model=original.model,
            input=[*items],
            instructions=original.instructions,
            tool_choice="none",
            prompt_cache_key=original.prompt_cache_key,
            service_tier=original.service_tier,
            truncation="auto",
            store=False,
        )

    async def _prepare(self, request: CreateResponse) -> PreparedRequest:
        sent = frozenset({"model", "input", "instructions", "max_output_tokens", "reasoning"})
        return await self._planner.plan(self._source.tenant, DecodedRequest(request, sent, []))


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[: max(0, limit - 2)].rstrip()} …"


class CompactionStep(Struct, eq=False):
    """Compacts the history before the first turn."""

    _planner: CompactionPlanner
    _keyring: Keyring
    _prepared_request: PreparedRequest
    ends_response: bool  # no answer follows: the client requested the item itself
    tokens: int = 0  # output tokens of the summary, which do not count towards the answer's limit

    async def take(self, context: ToolLoop) -> None:
        prepared_request = self._prepared_request
        try:
            memory, counts = await compact(
                self._planner, prepared_request, self._open_run, answering=not self.ends_response
            )
        except AntiphonError as error:
            if self.ends_response:
                raise
            log.warning("the compaction of a conversation failed: %s", error.message)
            return
        if counts is not None:
            self.tokens = counts.output_tokens
            context.add_counts(counts)
        item = await self._keyring.encrypt_memory(prepared_request.tenant, memory)
        key = context.new_key()
        await context.feed(
            ServerItemStarted(key, Compaction(encrypted_content="")), ServerItemDone(key, item), TurnEnded(counts)
        )

    def _open_run(self, prepared_request: PreparedRequest) -> CompletionRun:
        """Let the model write the summary without a client, once it has a slot."""
        return CompletionRun([self._planner.admit(prepared_request, patient=True)], PlainTextEmitter(), lambda _: None)


async def make_compaction_step(
    planner: CompactionPlanner, keyring: Keyring, prepared_request: PreparedRequest
) -> CompactionStep | None:
    """Return the step, or None if nothing has to be compacted."""
    request = prepared_request.decoded.request
    if is_triggered(request):
        return CompactionStep(planner, keyring, prepared_request, ends_response=True)
    if not request.context_management or not await _is_over(prepared_request, _find_threshold(prepared_request)):
        return None
    if plan_compaction(prepared_request.prepared.history.items, answering=True).is_empty:
        return None  # the history has no older part to compact
    return CompactionStep(planner, keyring, prepared_request, ends_response=False)


def is_triggered(request: CreateResponse) -> bool:
    return bool(request.input) and type(request.input[-1]) is CompactionTrigger


def allow_truncation(decoded: DecodedRequest) -> DecodedRequest:
    """Let a request that will be compacted exceed the context at first."""
    request = decoded.request
    if not request.context_management and not is_triggered(request):
        return decoded
    return replace(decoded, request=replace(request, truncation="auto"))


async def _is_over(prepared_request: PreparedRequest, threshold: int) -> bool:
    prepared = prepared_request.prepared
    if prepared.shortened:
        return True
    if measure_bytes(prepared.generation.prompt) < threshold:  # no token is shorter than a byte
        return False
    return await prepared_request.count_or_estimate() > threshold


def _find_threshold(prepared_request: PreparedRequest) -> int:
    entries = prepared_request.decoded.request.context_management or ()
    if explicit := [entry.compact_threshold for entry in entries if entry.compact_threshold is not None]:
        return min(explicit)
    if prepared_request.capabilities.context is None:
        raise MissingParameter(
            "The context size of this model is unknown: set the token count above which to compact.",
            param="context_management[0].compact_threshold",
        )
    return int(prepared_request.capabilities.context * _DEFAULT_SHARE)
