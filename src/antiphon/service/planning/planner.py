"""Everything about a request is settled here before it runs: a new one, or one taken over from a server that died.

What is wrong with a request is raised here, so a client gets a plain 4xx for it. Nothing is written.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import chain
from time import time

from msgspec import Struct
from msgspec.structs import replace

from antiphon.admission import Ticket
from antiphon.agent.model_call import Plan
from antiphon.agent.n_choices import Choices
from antiphon.agent.run import Beyond
from antiphon.agent.run_tracer import Witness
from antiphon.agent.timeouts import Deadlines
from antiphon.agent.tool_loop import Bounds
from antiphon.core.deltas import Said
from antiphon.core.emitter.emitter import Emitter, Log
from antiphon.core.emitter.event_log import Entry
from antiphon.core.encrypted_reasoning import Seal
from antiphon.core.prompt import TextPrompt, TokenPrompt
from antiphon.core.replay.replay import Replay
from antiphon.engines.base import Capabilities
from antiphon.errors import MissingParameter
from antiphon.ids import ItemIds, new_id
from antiphon.observe.log_context import note_response
from antiphon.protocol.decoding.codec import Decoded
from antiphon.protocol.decoding.stored_items import keep
from antiphon.protocol.types.items import InputItem, ItemReference, Message, Reasoning
from antiphon.protocol.types.request import CreateResponse
from antiphon.protocol.types.response import Response
from antiphon.service.access.service_tiers import rank
from antiphon.service.attachments.attachments import Attachments
from antiphon.service.encryption.keyring import Keyring, new_key
from antiphon.service.model_io.models import Models, Served
from antiphon.service.model_io.sampling import wants_logprobs
from antiphon.service.persistence.connection_cache import Recent
from antiphon.service.persistence.history_loader import Past
from antiphon.service.planning.request_policy import Meaning
from antiphon.service.planning.request_profile import Outlines
from antiphon.service.planning.validation import (
    ignored,
    only_messages,
    refuse_unhonoured,
    refuse_unsaid,
    refuse_unserved,
    refuse_unstored,
)
from antiphon.service.prompting.call_template import Aim, aimed
from antiphon.service.prompting.engine_fields import granted
from antiphon.service.prompting.prepare import AT_ONCE, Known, Means, OutputTokens, Prepared, prepare, there
from antiphon.service.prompting.prepared_request import Settled as Settled
from antiphon.service.prompting.prepared_request import repeated
from antiphon.service.prompting.raw_prompts import prepare_prompt
from antiphon.service.prompting.warmup import spoken_to, warming
from antiphon.service.tool_loop.compaction_step import compaction_step, roomy
from antiphon.service.tool_loop.response_turns import Ahead, Going, goes_on
from antiphon.service.tool_loop.toolkit import Toolkit

Watch = Callable[[str, str], Witness]

_aside = asyncio.to_thread

_SPOKEN = frozenset({Message})  # nothing that has to be looked up, opened or done


class Terms(Struct, frozen=True, kw_only=True):
    """The operator's word."""

    room: OutputTokens = OutputTokens()
    deadlines: Deadlines = Deadlines()
    stores: bool = True  # not --disable-store
    insists: int = 2  # how often a model is asked again
    watch: Watch | None = None  # of a tenant's response; None: nobody wants to know
    bounds: Bounds = Bounds()
    meaning: Meaning = Meaning()


class Undertaking(Struct, frozen=True, kw_only=True):
    """A request of which everything is settled. Whoever gets it runs its plan or calls `leave`."""

    plan: Plan
    opening: Response  # queued if it is for the background, else in_progress; says whether it is stored
    decoded: Decoded  # references resolved; with our ids if it is stored
    ignored: list[str]
    beyond: Beyond | Choices | None = None  # what it does beyond one answer in one turn
    earlier: Sequence[InputItem] = ()  # what came before its input
    rooted: bool = False  # what it continues is nowhere in the store
    obfuscates: bool = False  # the client asked for padded deltas
    left: tuple[Entry, ...] = ()  # what happened before, on a server that died

    def emitter(self, log: Log | None) -> Emitter:
        """The one that every run of it uses, so that ids and events are the same everywhere."""
        if not self.left:
            return Emitter(self.opening, ItemIds(self.opening.id), self.obfuscates, log)
        replay = Replay(self.opening, self.obfuscates, log)
        replay.open()
        replay.feed(self.left)
        return replay.emitter

    def owned(self, fence: int) -> None:
        """It is in the store, and ours."""
        if isinstance(self.beyond, Beyond):
            self.beyond.course.fence = fence

    def leave(self) -> None:
        """It is not going to run: its place at the model is free again."""
        if self.plan.ticket is not None:
            self.plan.ticket.leave()


class Planner:
    def __init__(
        self,
        models: Models,
        past: Past,
        terms: Terms,
        attachments: Attachments | None = None,
        keyring: Keyring | None = None,
        toolkit: Toolkit | None = None,
    ) -> None:
        self._models = models
        self._past = past
        self._terms = terms
        self._keyring = Keyring([new_key()]) if keyring is None else keyring
        self._toolkit = toolkit or Toolkit()
        self._means = Means((attachments or Attachments()).bring, self._toolkit.hosting, self._keyring)
        self._outlines = Outlines(models, self._toolkit, terms.meaning, terms.room, terms.stores)

    def seals(self, tenant: str) -> Seal:
        return self._keyring.seals(tenant)

    def stores(self, request: CreateResponse) -> bool:
        return self._terms.stores and request.store is not False

    async def plan(
        self,
        tenant: str,
        decoded: Decoded,
        opening: Response | None = None,
        patient: bool = False,
        recent: Recent | None = None,
    ) -> Undertaking:
        """`decoded` gets ids of ours if it is stored. `opening`: how the Response stood, if it is in the store already.

        `patient` (always for background): its ticket takes a place in the model's queue only when it is awaited, and
        that queue is never full for it. Else Busy is raised when it is. `recent`: what its connection remembers.
        """
        decoded, outline = self._outlines.known(decoded) or await self._outlines.of(decoded, opening)
        request, aim, again = decoded.request, outline.aim, opening is not None
        before = request.previous_response_id
        remembered = None if recent is None else recent.items(before or "")
        plain = bool(request.input) and _SPOKEN.issuperset(map(type, request.input))
        if not plain or outline.needs_store or not self._terms.stores:
            refuse_unsaid(request)
            refuse_unstored(request, self._terms.stores, remembered is not None)
        earlier: Sequence[InputItem] = remembered or ()
        if remembered is None and (before is not None or request.conversation is not None):
            earlier = await self._earlier(tenant, request, opening)
        if opening is None:
            opening = replace(
                outline.opening, id=new_id("resp"), created_at=int(time()), output=[], previous_response_id=before
            )
        note_response(opening.id)
        if not (again or (plain and remembered is None)):
            decoded, earlier = await self._resolved(tenant, decoded, opening, earlier, remembered)
        if opening.store and not again:
            given, ids = decoded.request.input, ItemIds(opening.id, "input")
            decoded.request.input = keep(given, ids) if len(given) <= AT_ONCE else await _aside(keep, given, ids)
        quiet = plain and not (earlier or remembered)  # no item asks for anything but an answer
        asked = decoded if quiet and outline.once else roomy(spoken_to(decoded, earlier) if outline.warms else decoded)
        prepared = prepare(asked, Known(tenant, earlier, opened=quiet), aim, self._means)
        if not isinstance(prepared, Prepared):
            prepared = await prepared
        if outline.warms:
            prepared = warming(prepared)
        if request.enable_response_messages and not again:
            opening.input_messages = [*prepared.messages]
        beyond = None
        quiet = quiet or not goes_on(chain(earlier, decoded.request.input))
        if not (outline.warms or (quiet and outline.once)):
            waits = self._toolkit.awaits(request, opening.store)
            going = Going(tenant=tenant, id=opening.id, decoded=decoded, earlier=earlier, waits=waits)
            beyond = await self._beyond(going, prepared, aim, again)
        ticket = self._models.admit(aim.served, aim.able, patient, tenant, outline.rank)
        return Undertaking(
            plan=self._plan(tenant, request, prepared, ticket),
            opening=opening,
            decoded=decoded,
            ignored=[*decoded.ignored, *outline.ignored, *prepared.ignored],
            beyond=beyond,
            earlier=earlier,
            rooted=remembered is not None,
            obfuscates=outline.obfuscates,
        )

    async def settle(self, tenant: str, decoded: Decoded) -> Settled:
        """A request of which nothing is kept, without a place at the model: for other APIs, and for counting."""
        decoded = await self._terms.meaning.of(decoded)
        request, sent = decoded.request, decoded.sent
        refuse_unserved(request, sent)
        refuse_unsaid(request)
        refuse_unstored(request, self._terms.stores)
        self._toolkit.settle(request)
        served, able = await self._able(decoded)
        earlier = await self._earlier(tenant, request, None)
        decoded = await self._opened(tenant, decoded)
        request = decoded.request
        if any(type(item) is ItemReference for item in request.input):
            items = await self._past.resolve(tenant, request.input)
            decoded = replace(decoded, request=replace(request, input=items))
        aim = aimed(decoded, served, able, self._terms.room)
        prepared = await there(prepare(decoded, Known(tenant, earlier), aim, self._means))
        named = [*decoded.ignored, *ignored(request, sent), *prepared.ignored]
        return Settled(tenant=tenant, decoded=decoded, served=served, able=able, prepared=prepared, ignored=named)

    async def settle_prompts(
        self, tenant: str, decoded: Decoded, prompts: Sequence[TextPrompt | TokenPrompt]
    ) -> list[Settled]:
        """The same for prompts that the caller wrote whole; the request has no input."""
        decoded = await self._terms.meaning.of(decoded)
        served, able = await self._able(decoded)
        room, found = served.room or self._terms.room, []
        for prompt in prompts:
            prepared = await prepare_prompt(decoded, prompt, served, able, room)
            prepared = replace(prepared, work=granted(tenant, decoded.request, prepared.work))
            named = [*decoded.ignored, *ignored(decoded.request, decoded.sent)]
            found.append(
                Settled(tenant=tenant, decoded=decoded, served=served, able=able, prepared=prepared, ignored=named)
            )
        return found

    def admitted(self, settled: Settled, patient: bool = False) -> Plan:
        """With a place at the model, or Busy unless it is patient. One for each call of it: a parser and a Declared
        serve one call."""
        request = settled.decoded.request
        ticket = self._models.admit(settled.served, settled.able, patient, settled.tenant, rank(request))
        return self._plan(settled.tenant, request, settled.prepared.again(), ticket)

    async def _able(self, decoded: Decoded) -> tuple[Served, Capabilities]:
        served = self._models.find(decoded.request.model)
        able = await served.capabilities()
        refuse_unhonoured(decoded.request, decoded.sent, able, served.engine.name)
        return served, able

    async def _replan(
        self, tenant: str, earlier: Sequence[InputItem], aim: Aim, decoded: Decoded, said: Mapping[str, Said]
    ) -> Plan:
        """For another turn of the same response, of which fewer tokens may be left."""
        aim = aimed(decoded, aim.served, aim.able, self._terms.room)
        prepared = await there(prepare(decoded, Known(tenant, earlier, said), aim, self._means))
        ticket = self._models.admit(aim.served, aim.able, True, tenant, rank(decoded.request))
        return self._plan(tenant, decoded.request, prepared, ticket)

    async def _beyond(self, going: Going, prepared: Prepared, aim: Aim, again: bool) -> Beyond | Choices | None:
        """`again`: another server had begun it."""
        tenant, decoded = going.tenant, going.decoded
        settled = Settled(
            tenant=tenant, decoded=decoded, served=aim.served, able=aim.able, prepared=prepared, ignored=[]
        )
        step = await compaction_step(self, self._keyring, settled)
        ahead = Ahead(self._toolkit, going, again)
        course = await ahead.course(prepared, partial(self._replan, tenant, going.earlier, aim), step)
        if (decoded.request.n or 1) > 1:
            if course is not None or not prepared.declared.empty:
                raise only_messages()
            return self._choices(settled)
        if course is None:
            return None
        return Beyond(course=course, bounds=replace(self._terms.bounds, calls=decoded.request.max_tool_calls))

    def _choices(self, settled: Settled) -> Choices:
        """Each waits for its place."""
        request = settled.decoded.request
        others = [self.admitted(each, patient=True) for each in repeated(settled, request.n or 1)[1:]]
        return Choices(others=others, hides_logprobs=not wants_logprobs(request))

    def _plan(self, tenant: str, request: CreateResponse, prepared: Prepared, ticket: Ticket | None) -> Plan:
        sealed = "reasoning.encrypted_content" in request.include
        return Plan(
            engine=prepared.engine,
            work=prepared.work,
            parser=prepared.parser,
            declared=prepared.declared,
            insists=None if prepared.insists is None else replace(prepared.insists, tries=self._terms.insists),
            summarises=bool(request.reasoning.summary or request.reasoning.generate_summary),
            seal=self._keyring.seals(tenant) if sealed else None,
            ticket=ticket,
            deadlines=self._terms.deadlines,
            warms=prepared.warms,
            watch=None if self._terms.watch is None else partial(self._terms.watch, tenant),
        )

    async def _resolved(
        self,
        tenant: str,
        decoded: Decoded,
        opening: Response,
        earlier: Sequence[InputItem],
        remembered: Sequence[InputItem] | None,
    ) -> tuple[Decoded, Sequence[InputItem]]:
        """With the items that it stands for, and what came before it then."""
        decoded = await self._opened(tenant, decoded)
        if opening.store and remembered is not None:
            decoded, earlier = _with_all(decoded, remembered), ()
        if ItemReference in map(type, decoded.request.input):
            items = await self._past.resolve(tenant, decoded.request.input)
            decoded = replace(decoded, request=replace(decoded.request, input=items))
        return decoded, earlier

    async def _earlier(self, tenant: str, request: CreateResponse, opening: Response | None) -> Sequence[InputItem]:
        if request.previous_response_id is None and request.conversation is None:
            return ()
        earlier = await self._past.earlier(tenant, request, None if opening is None else opening.id)
        if not (earlier or request.input):
            raise MissingParameter("Missing required parameter: 'input'. The conversation is empty.", param="input")
        return earlier

    async def _opened(self, tenant: str, decoded: Decoded) -> Decoded:
        """With the reasoning that a client brought back sealed, as it was thought. What is kept is kept like that."""
        given = decoded.request.input
        if Reasoning not in map(type, given):
            return decoded
        items, unread = await self._keyring.opened(tenant, given)
        if items is given:
            return decoded
        return replace(decoded, request=replace(decoded.request, input=items), ignored=[*decoded.ignored, *unread])


def _with_all(decoded: Decoded, earlier: Sequence[InputItem]) -> Decoded:
    """Its input begins with all that came before: for one that is stored and continues one that is not."""
    request = decoded.request
    return replace(decoded, request=replace(request, input=[*earlier, *request.input]), sent=decoded.sent | {"input"})
