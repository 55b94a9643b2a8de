"""A compaction in the making: the model sums up what was, and what is kept beside its summary is made to fit.

    what is restored  ≤  a quarter of what it replaces

Both are counted as prompts of this model, without what stays as it is (instructions, the tail). A user's message is
never less than its first characters and a summary may always have LEAST tokens, so of a short history, or one that is
little else than a user's words, more than a quarter may be left.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Protocol

from msgspec import Struct
from msgspec.structs import replace

from antiphon.agent.completion_run import Exchange
from antiphon.agent.model_call import Plan
from antiphon.core.dialects.plain_text import Gist, GistEmitter
from antiphon.core.history.compaction import Memory, told, user_message
from antiphon.core.history.compaction_plan import Parting, excess, filled, newest, part
from antiphon.core.prompt import Counts
from antiphon.core.usage import sum_of
from antiphon.engines.base import Capabilities
from antiphon.errors import BadRequest, EngineFailed
from antiphon.protocol.decoding.codec import Decoded
from antiphon.protocol.types.items import InputItem
from antiphon.protocol.types.request import CreateResponse
from antiphon.protocol.types.response import ReasoningConfig
from antiphon.service.prompting.prepared_request import Settled
from antiphon.service.prompting.token_count import measured

LEAST, MOST = 64, 2000  # tokens of a summary
_SHARE: Final = 4  # a quarter
_THOUGHTS: Final = 1024  # tokens
_ORDER_TOKENS: Final = 256  # at most, of the order below
_TRIES: Final = 8
_ORDER: Final = (
    "Everything before this message is about to be forgotten, except the user's own messages. Write the summary that "
    "will take its place, in at most {words} words. Do not answer and do not call anything. Say what was found out, "
    "done and decided, with names, numbers, paths and results exactly as they were; which tools were called and what "
    "came of it; what is still open, and what was to be done next. Write nothing but the summary."
)

Ask = Callable[[Settled], Awaitable[Gist]]


class Asker(Protocol):
    """The planner."""

    async def settle(self, tenant: str, decoded: Decoded) -> Settled: ...

    def admitted(self, settled: Settled, patient: bool = False) -> Plan: ...


class Task(Struct, frozen=True, kw_only=True):
    tenant: str
    request: CreateResponse  # its model and its instructions count
    items: Sequence[InputItem]  # the history, restored
    able: Capabilities
    answering: bool  # the model is to go on from there


class Compacted(Struct, frozen=True, kw_only=True):
    memory: Memory
    counts: Counts | None  # None: the model was not asked, as there was nothing to be summed up


def task_of(settled: Settled, answering: bool) -> Task:
    return Task(
        tenant=settled.tenant,
        request=settled.decoded.request,
        items=settled.prepared.history.items,
        able=settled.able,
        answering=answering,
    )


async def compacted(asker: Asker, task: Task, ask: Ask) -> Compacted:
    """Raises what the model's engine raises, and EngineFailed if the model says nothing."""
    parting = part(task.items, task.answering)
    if parting.is_idle:
        return Compacted(memory=filled(parting, "", 0), counts=None)
    return await _Compacting(asker, task, parting).done(ask)


async def privately(asker: Asker, settled: Settled) -> Gist:
    """The model is asked with nobody listening, when there is a place for it."""
    exchange = Exchange([asker.admitted(settled, patient=True)], GistEmitter(), lambda _: None)
    return await heard(exchange)


async def heard(exchange: Exchange) -> Gist:
    """Of an exchange in these words."""
    try:
        gist = await exchange.result()
    finally:
        await exchange.leave()
    assert isinstance(gist, Gist)
    return gist


class _Compacting:
    def __init__(self, asker: Asker, task: Task, parting: Parting) -> None:
        self._asker = asker
        self._task = task
        self._parting = parting

    async def done(self, ask: Ask) -> Compacted:
        parting = self._parting
        before = await self._tokens([*parting.summed, *parting.tail])
        base = await self._base()
        limit = base + (before - base) // _SHARE
        least = await self._after(filled(parting, ".", 0))
        most = _summary_room(limit - least, excess(parting))
        gist = await self._asked(ask, before, most)
        text = gist.text.strip()
        width = len(text) / max(1, await self._after(filled(parting, text, 0)) - least)  # characters of a token
        text = _cut(f"{text} …" if gist.cut else text, int(most * width))
        room = min(excess(parting), int(max(0, limit - least) * width) - len(text))
        return Compacted(memory=await self._fitted(text, max(0, room), limit, width), counts=gist.counts)

    async def _asked(self, ask: Ask, before: int, most: int) -> Gist:
        """Once more, and with room for thoughts, if it was cut before it had said anything or cannot be told not to
        think: some models do, and some servers know no such effort."""
        first = Counts()
        try:
            gist = await ask(await self._ordered(before, most))
            again, first = gist.cut and not gist.text.strip(), gist.counts
        except BadRequest as error:
            if type(error) is not BadRequest or "reasoning.effort" not in self._task.able.honours:
                raise
            again = True
        if again:
            gist = await ask(await self._ordered(before, most, _THOUGHTS))
            gist = replace(gist, counts=sum_of([first, gist.counts]))
        if not gist.text.strip():
            raise EngineFailed("The model gave no summary of the conversation.")
        return gist

    async def _fitted(self, text: str, room: int, limit: int, width: float) -> Memory:
        """The user's messages lose their ends first, then the summary."""
        shortest = int(LEAST * width)
        for _ in range(_TRIES):
            memory = filled(self._parting, text, room)
            over = await self._after(memory) - limit
            if over <= 0 or not (room or len(text) > shortest):
                return memory
            surplus = int(over * width * 1.2) + 8
            if room:
                room = max(0, room - surplus)
            else:
                text = _cut(text, max(shortest, len(text) - surplus))
        return filled(self._parting, _cut(text, shortest), 0)

    async def _base(self) -> int:
        """What stays as it is."""
        stays = [*self._parting.stays, *self._parting.tail]
        if not stays and not self._task.request.instructions:
            return 0
        return await self._tokens(stays or [user_message(".")])

    async def _after(self, memory: Memory) -> int:
        return await self._tokens([*self._parting.stays, *told(memory)])

    async def _tokens(self, items: Sequence[InputItem]) -> int:
        settled = await self._settled(self._request(items))
        return await measured(settled.prepared, settled.served, settled.able)

    async def _ordered(self, before: int, room: int, thoughts: int = 0) -> Settled:
        """The question for a summary of so many tokens, about as much as the context has room for."""
        able, items = self._task.able, self._parting.summed
        asked = room + thoughts
        if able.context is not None and (most := able.context - asked - _ORDER_TOKENS) < before:
            items = newest(items, max(0.0, most) / before * 0.9)
        order = user_message(_ORDER.format(words=room * 2 // 3))
        request = self._request([*items, order])
        request.max_output_tokens = asked
        if "reasoning.effort" in able.honours and not thoughts:
            request.reasoning = ReasoningConfig(effort="none")
        return await self._settled(request)

    def _request(self, items: Sequence[InputItem]) -> CreateResponse:
        """Without tools, also without those that came with an item. Of what is too long for the model's context, the
        oldest is left out."""
        asked = self._task.request
        return CreateResponse(
            model=asked.model,
            input=[*items],
            instructions=asked.instructions,
            tool_choice="none",
            prompt_cache_key=asked.prompt_cache_key,
            service_tier=asked.service_tier,
            truncation="auto",
            store=False,
        )

    async def _settled(self, request: CreateResponse) -> Settled:
        sent = frozenset({"model", "input", "instructions", "truncation", "max_output_tokens", "reasoning"})
        return await self._asker.settle(self._task.tenant, Decoded(request, sent, []))


def _summary_room(left: int, excess: int) -> int:
    """Tokens. Half of what is left, if the user's messages could use the other half."""
    return min(max(left // 2 if excess else left, LEAST), MOST)


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: max(0, most - 2)].rstrip()} …"
