"""`context_management`: a prompt above its threshold is compacted before the model is called.

The compaction item is part of the response's own output, before the answer, and also replaces the request's input. It
is emitted when it is complete: a failed summary leaves no trace, and the response continues with its full history if
that fits. A client that sends a compaction trigger requests the item itself: it gets the item or an error, and no
answer.
"""

import logging
from typing import Final

from msgspec.structs import replace

from antiphon.agent.turn_policy import StepContext
from antiphon.core.deltas import ServerItemDone, ServerItemStarted, TurnEnded
from antiphon.core.dialects.dialect import PlainTextResult
from antiphon.core.history.compaction_plan import plan_compaction
from antiphon.errors import AntiphonError, MissingParameter
from antiphon.protocol.decoding.codec import DecodedRequest
from antiphon.protocol.types.items import Compaction, CompactionTrigger
from antiphon.protocol.types.request import CreateResponse
from antiphon.service.encryption.keyring import Keyring
from antiphon.service.prompting.compaction_items import encrypt_memory
from antiphon.service.prompting.prepared_request import PreparedRequest
from antiphon.service.prompting.token_count import count_or_estimate, is_surely_below
from antiphon.service.tool_loop.compaction import CompactionPlanner, compact, make_task, summarise_privately

log = logging.getLogger(__name__)

_DEFAULT_SHARE: Final = 0.75  # of the context, if the request names no threshold


class CompactionStep:
    """Compacts the history before the first turn."""

    def __init__(
        self, planner: CompactionPlanner, keyring: Keyring, prepared_request: PreparedRequest, *, triggered: bool
    ) -> None:
        self._planner = planner
        self._keyring = keyring
        self._prepared_request = prepared_request
        self.ends_response = triggered  # no answer follows
        self.tokens = 0  # output tokens of the summary, which do not count towards the answer's limit

    async def take(self, context: StepContext) -> None:
        prepared_request = self._prepared_request
        try:
            result = await compact(self._planner, make_task(prepared_request, not self.ends_response), self._summarise)
        except AntiphonError as error:
            if self.ends_response:
                raise
            log.warning("the compaction of a conversation failed: %s", error.message)
            return
        if result.counts is not None:
            self.tokens = result.counts.output_tokens
            context.add_counts(result.counts)
        item = await encrypt_memory(self._keyring, prepared_request.tenant, result.memory)
        key = context.new_key()
        await context.feed(
            ServerItemStarted(key, Compaction(encrypted_content="")),
            ServerItemDone(key, item),
            TurnEnded(result.counts),
        )

    async def _summarise(self, prepared_request: PreparedRequest) -> PlainTextResult:
        return await summarise_privately(self._planner, prepared_request)


async def make_compaction_step(
    planner: CompactionPlanner, keyring: Keyring, prepared_request: PreparedRequest
) -> CompactionStep | None:
    """Return the step, or None if nothing has to be compacted."""
    request = prepared_request.decoded.request
    if is_triggered(request):
        return CompactionStep(planner, keyring, prepared_request, triggered=True)
    if not request.context_management or not await _is_over(
        prepared_request, _find_threshold(request, prepared_request)
    ):
        return None
    if plan_compaction(prepared_request.prepared.history.items, answering=True).is_empty:
        return None  # the history has no older part to compact
    return CompactionStep(planner, keyring, prepared_request, triggered=False)


def is_triggered(request: CreateResponse) -> bool:
    return bool(request.input) and type(request.input[-1]) is CompactionTrigger


def allow_truncation(decoded: DecodedRequest) -> DecodedRequest:
    """Let a request that will be compacted exceed the context at first."""
    request = decoded.request
    items = request.input
    if not request.context_management and not (items and type(items[-1]) is CompactionTrigger):
        return decoded
    return replace(decoded, request=replace(request, truncation="auto"))


async def _is_over(prepared_request: PreparedRequest, threshold: int) -> bool:
    prepared = prepared_request.prepared
    if prepared.shortened:
        return True
    if is_surely_below(prepared.generation.prompt, threshold):
        return False
    return await count_or_estimate(prepared, prepared_request.served, prepared_request.capabilities) > threshold


def _find_threshold(request: CreateResponse, prepared_request: PreparedRequest) -> int:
    thresholds = [entry.compact_threshold for entry in request.context_management or ()]
    explicit = [threshold for threshold in thresholds if threshold is not None]
    if explicit:
        return min(explicit)
    if prepared_request.capabilities.context is None:
        raise MissingParameter(
            "The context size of this model is unknown: set the token count above which to compact.",
            param="context_management[0].compact_threshold",
        )
    return int(prepared_request.capabilities.context * _DEFAULT_SHARE)
