"""How a response came about: what it is connected with, its timing, and its prompt, rendered again on request.

The prompt is that of the first model call. It is planned again from the stored history, as for a run that another
server takes over. Where an engine renders chats itself, the messages are what it receives; it alone knows the text.
"""

import asyncio
from collections.abc import Sequence
from itertools import takewhile

from msgspec import UNSET, json
from msgspec.structs import replace

from antiphon.admission import Admission
from antiphon.core.prompt import ChatPrompt, Segment, TextPrompt, TokenPrompt
from antiphon.core.replay import reset_response
from antiphon.errors import AntiphonError, NotFound
from antiphon.ids import is_id
from antiphon.protocol.types.items import Compaction, McpCall, McpListTools, OutputItem
from antiphon.protocol.types.operations.inspection import (
    PromptSegment,
    RenderedPrompt,
    ResponseTiming,
    ResponseTree,
    TimeSpan,
)
from antiphon.protocol.types.response import Response, Usage
from antiphon.render.harmony.renderer import spell_tokens
from antiphon.service.operations.traces import TraceStore
from antiphon.service.persistence.response_summary import to_response_summary
from antiphon.service.persistence.rows import decode_response, load_row, restore_request, unknown_response_error
from antiphon.service.persistence.stored_responses import check_store_enabled
from antiphon.service.planning.planner import Planner
from antiphon.service.prompting.prepared_request import PreparedRequest
from antiphon.stores.base import StoredResponse, SummaryRow
from antiphon.stores.sql.store import Store

MAX_TREE = 500  # responses
MAX_RENDERINGS = 4  # at a time: nobody waits for them but a person

_Prefix = tuple[int | None, bool]  # characters of a prompt that were cached, and whether that is exact


class Inspection:
    def __init__(self, store: Store, planner: Planner, traces: TraceStore, queue: int, store_enabled: bool) -> None:
        """`queue`: requests that may wait for admission."""
        self._store = store
        self._traces = traces
        self._planner = planner
        self._store_enabled = store_enabled
        self._admission = Admission(MAX_RENDERINGS, queue)

    async def find_tree(self, tenant: str, response_id: str) -> ResponseTree:
        self._check_id(response_id)
        rows, has_more = await self._store.find_tree(tenant, response_id, MAX_TREE)
        if not rows:
            raise unknown_response_error(response_id)
        return ResponseTree(id=response_id, data=[*map(to_response_summary, rows)], has_more=has_more)

    async def show_timing(self, tenant: str, response_id: str) -> ResponseTiming:
        self._check_id(response_id)
        found = await self._store.find_summaries(tenant, [response_id])
        if not found:
            raise unknown_response_error(response_id)
        spans = self._traces.find_spans(tenant, response_id)
        return ResponseTiming(
            id=response_id, traced=spans is not None, spans=_to_spans(found[0]) if spans is None else spans
        )

    async def render_prompt(self, tenant: str, response_id: str) -> RenderedPrompt:
        """Raises what planning the response would raise now: its model or what it continues may be gone."""
        self._check_id(response_id)
        row = await load_row(self._store, tenant, response_id)
        await self._check_ancestors(tenant, row)
        response, decoded = decode_response(row.response), restore_request(row)
        first = _items_before_answer(response)
        decoded = replace(decoded, request=replace(decoded.request, input=[*decoded.request.input, *first]))
        with self._admission.enter(tenant) as ticket:
            await ticket.wait_turn()
            prepared_request = await self._planner.plan_again(tenant, decoded, reset_response(response))
            counts = _read_counts(response.usage, sum([isinstance(item, Compaction) for item in first]))
            return await _show(prepared_request, response, *counts)

    async def _check_ancestors(self, tenant: str, row: StoredResponse) -> None:
        """Raise NotFound if the response continues deleted ones: models read them, clients must not."""
        ids = [link.id for link in await self._store.chain(tenant, row.id)] if row.previous is not None else []
        if len(await self._store.find_summaries(tenant, ids)) < len(ids):
            raise NotFound("The prompt of this response is not shown: it contains a response that was deleted.")

    def _check_id(self, response_id: str) -> None:
        check_store_enabled(self._store_enabled)
        if not is_id(response_id, "resp"):
            raise unknown_response_error(response_id)


def _to_spans(row: SummaryRow) -> list[TimeSpan]:
    """Return what is known about the timing of a response without a trace."""
    ttft = to_response_summary(row).ttft
    first = row.created + (ttft or 0.0)
    wait = TimeSpan(kind="wait", name="", began=row.created, seconds=ttft or 0.0, error=None)
    output = TimeSpan(kind="output", name="", began=first, seconds=(row.ended or first) - first, error=None)
    return [output] if ttft is None else [wait, output]


def _items_before_answer(response: Response) -> list[OutputItem]:
    """Return the output that the first model call has already seen."""
    return [*takewhile(_is_earlier_step, response.output)]


def _is_earlier_step(item: OutputItem) -> bool:
    is_approved = isinstance(item, McpCall) and item.approval_request_id is not None
    return is_approved or isinstance(item, Compaction | McpListTools)


def _read_counts(usage: Usage | None, turn: int) -> tuple[int | None, int | None]:
    """Return the input tokens of a turn, and how many of them were cached."""
    if usage is None:
        return None, None
    details = usage.input_tokens_details
    inputs, cached = details.input_tokens_per_turn, details.cached_tokens_per_turn
    if inputs is UNSET or cached is UNSET:
        return usage.input_tokens, details.cached_tokens
    return (inputs[turn], cached[turn]) if turn < min(len(inputs), len(cached)) else (None, None)


async def _show(
    prepared_request: PreparedRequest, response: Response, input_tokens: int | None, cached_tokens: int | None
) -> RenderedPrompt:
    prompt, served = prepared_request.prepared.generation.prompt, prepared_request.served
    segments, (end, is_exact) = await _split_prompt(prepared_request, input_tokens, cached_tokens)
    return RenderedPrompt(
        id=response.id,
        model=served.name,
        engine=served.engine.name,
        kind="chat" if isinstance(prompt, ChatPrompt) else "text" if isinstance(prompt, TextPrompt) else "tokens",
        segments=_mark_cached(segments, end),
        input_tokens=input_tokens,
        cached_tokens=cached_tokens,
        cached_prefix="unknown" if end is None else "exact" if is_exact else "approximate",
        changeable=response.conversation is not None,
    )


async def _split_prompt(
    prepared_request: PreparedRequest, input_tokens: int | None, cached_tokens: int | None
) -> tuple[Sequence[Segment], _Prefix]:
    """Return the text of a prompt, and where its cached prefix ends."""
    match prepared_request.prepared.generation.prompt:
        case ChatPrompt(messages=messages, tools=tools):
            pieces = [json.format(json.encode(one), indent=1).decode() for one in (*tools, *messages)]
            return [Segment(f"{piece}\n", control=False) for piece in pieces], (None, False)
        case TokenPrompt(tokens=tokens):
            cached = await asyncio.to_thread(spell_tokens, tokens[: cached_tokens or 0])
            others = await asyncio.to_thread(spell_tokens, tokens[cached_tokens or 0 :])
            end = None if cached_tokens is None else sum([len(segment.text) for segment in cached])
            return (*cached, *others), (end, True)
        case TextPrompt() as prompt:
            prefix = await _find_prefix(prepared_request, prompt, input_tokens, cached_tokens)
            return prompt.segments, prefix


async def _find_prefix(
    prepared_request: PreparedRequest, prompt: TextPrompt, input_tokens: int | None, cached_tokens: int | None
) -> _Prefix:
    """Find the characters of the cached tokens: exactly, if the engine spells them as they are in the text."""
    if cached_tokens is None or not input_tokens:
        return None, False
    text = "".join([segment.text for segment in prompt.segments])
    if not cached_tokens:
        return 0, True
    if prepared_request.capabilities.tasks >= {"tokenize", "detokenize"}:
        served = prepared_request.served
        try:
            tokens = await served.engine.tokenize(served.model, prompt)
            spelt = await served.engine.detokenize(served.model, tokens[:cached_tokens])
        except AntiphonError:  # not every version of an engine has a tokenizer
            spelt = ""
        if spelt and text.startswith(spelt):
            return len(spelt), True
    return len(text) * min(cached_tokens, input_tokens) // input_tokens, False


def _mark_cached(segments: Sequence[Segment], end: int | None) -> list[PromptSegment]:
    """Cut the segments where the cached prefix ends."""
    if end is None:
        return [PromptSegment(text=one.text, control=one.control, cached=None) for one in segments]
    marked: list[PromptSegment] = []
    for segment in segments:
        cut = max(0, min(end, len(segment.text)))
        end -= len(segment.text)
        pieces = ((segment.text[:cut], True), (segment.text[cut:], False))
        marked += [
            PromptSegment(text=text, control=segment.control, cached=is_cached) for text, is_cached in pieces if text
        ]
    return marked
