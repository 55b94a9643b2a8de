"""Summaries of reasoning for the user, written by the same model in a request of its own.

A summary that fails is left out, with a warning in the log: the answer does not depend on it.
"""

import logging
from collections.abc import Awaitable
from typing import Final

from msgspec import Struct

from antiphon.agent.completion_run import CompletionRun
from antiphon.agent.engine_stream import EmitText
from antiphon.core.deltas import Text
from antiphon.core.dialects.dialect import PlainTextEmitter, WireEvents
from antiphon.core.history.compaction import user_message
from antiphon.core.prompt import TokenCounts
from antiphon.core.usage import sum_counts
from antiphon.errors import AntiphonError, BadRequest
from antiphon.protocol.decoding.codec import DecodedRequest
from antiphon.protocol.types.request import CreateResponse
from antiphon.protocol.types.response import ReasoningConfig, SummaryStyle
from antiphon.service.prompting.prepared_request import PreparedRequest
from antiphon.service.tool_loop.compaction import CompactionPlanner

log = logging.getLogger(__name__)

MAX_SUMMARY_TOKENS: Final = 2048  # including reasoning, which some models cannot stop
_LENGTHS: Final[dict[SummaryStyle, str]] = {
    "auto": "in one short paragraph",
    "concise": "in one or two sentences",
    "detailed": "step by step, with one short paragraph for each step",
}
_INSTRUCTION: Final = (
    "These are the thoughts of an assistant before it answered its user. Summarise for the user what was considered "
    "and concluded, {length}, in the first person and in the language of the thoughts. Do not continue them, and write "
    "nothing but the summary.\n\n<thoughts>\n{reasoning}\n</thoughts>"
)
_SENT: Final = frozenset({"model", "input", "truncation", "max_output_tokens", "reasoning"})


class SummaryWriter(Struct, frozen=True):
    """Writes the summaries of one response."""

    _planner: CompactionPlanner
    _tenant: str
    _request: CreateResponse  # of the response
    _style: SummaryStyle

    async def write(self, reasoning: str, emit: EmitText) -> TokenCounts:
        """Write a summary; returns the tokens of all attempts.

        Some servers reject the effort "none", so a rejected request is repeated without it.
        """
        counts = []
        for effort in ("none", None):
            try:
                counts.append(await self._write(reasoning, emit, ReasoningConfig(effort=effort)))
                break
            except BadRequest as error:
                if effort is None:
                    log.warning("reasoning was not summarised: %s", error.message)
            except AntiphonError as error:
                log.warning("reasoning was not summarised: %s", error.message)
                break
        return sum_counts(counts)

    async def _write(self, reasoning: str, emit: EmitText, config: ReasoningConfig) -> TokenCounts:
        prepared = await self._prepare(reasoning, config)
        run = CompletionRun([self._planner.admit(prepared, patient=True)], PlainTextEmitter(), lambda _: None)

        def emit_texts(events: WireEvents) -> Awaitable[None]:
            return emit("".join([event.text for event in events if isinstance(event, Text)]))

        try:
            await run.drive(emit_texts)
        finally:
            await run.close()
        if run.error is not None:
            raise run.error
        return run.counts

    async def _prepare(self, reasoning: str, config: ReasoningConfig) -> PreparedRequest:
        instruction = _INSTRUCTION.format(length=_LENGTHS[self._style], reasoning=reasoning)
        request = CreateResponse(
            model=self._request.model,
            input=[user_message(instruction)],
            tool_choice="none",
            service_tier=self._request.service_tier,
            max_output_tokens=MAX_SUMMARY_TOKENS,
            reasoning=config,
            truncation="auto",
            store=False,
        )
        return await self._planner.plan(self._tenant, DecodedRequest(request, _SENT, []))
