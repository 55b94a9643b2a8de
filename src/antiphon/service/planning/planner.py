"""Planner: decides everything about a request before it runs, for new requests and for runs taken over from a dead
server.

Errors of a request are raised here, so the client gets a plain 4xx. Nothing is written.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from time import time

from msgspec import Struct
from msgspec.structs import replace

from antiphon.admission import Ticket
from antiphon.agent.choices import ExtraChoices
from antiphon.agent.engine_stream import ModelCall
from antiphon.agent.run import MultiTurn
from antiphon.agent.run_tracer import RunTracer
from antiphon.agent.timeouts import Timeouts
from antiphon.agent.tool_loop import ToolLoopLimits
from antiphon.config.areas import CacheKeyUse, ReasoningSummaries, UnservedTools
from antiphon.core.deltas import ToolOutputContent
from antiphon.core.emitter.emitter import Emitter, EventLog
from antiphon.core.emitter.event_log import LogEntry
from antiphon.core.emitter.fold import open_response
from antiphon.core.encrypted_reasoning import Encrypt
from antiphon.core.history.history import NO_TOOL_OUTPUTS
from antiphon.core.prompt import TextPrompt, TokenPrompt
from antiphon.core.replay import Replay
from antiphon.core.skills import OfferedSkill
from antiphon.errors import InvalidValue, MissingParameter
from antiphon.ids import ItemIds, new_id
from antiphon.observe.logs import set_response_id
from antiphon.protocol.decoding.codec import DecodedRequest
from antiphon.protocol.decoding.stored_items import assign_ids, is_reference
from antiphon.protocol.types.items import InputItem, Reasoning
from antiphon.protocol.types.request import CreateResponse
from antiphon.protocol.types.response import Response
from antiphon.service.attachments.attachments import Attachments
from antiphon.service.keyring import Keyring, new_key
from antiphon.service.model_io.adapter import find_logprobs_field
from antiphon.service.model_io.models import Models
from antiphon.service.model_io.served_model import ModelTarget, OutputTokenLimits, apply_defaults, make_target
from antiphon.service.persistence.history_cache import ConnectionCache
from antiphon.service.persistence.history_loader import HistoryLoader
from antiphon.service.planning import validation
from antiphon.service.planning.request_policy import RequestPolicy
from antiphon.service.prompting.prepare import MAX_INLINE_ITEMS, PromptInputs, PromptServices, prepare
from antiphon.service.prompting.prepared_request import (
    PreparedPrompt,
    PreparedRequest,
    ensure_user_message,
    is_warmup,
    repeat_request,
    to_warmup,
)
from antiphon.service.prompting.raw_prompts import prepare_prompt
from antiphon.service.tool_loop.compaction import allow_truncation, make_compaction_step
from antiphon.service.tool_loop.moderation import Moderator
from antiphon.service.tool_loop.reasoning_summaries import SummaryWriter
from antiphon.service.tool_loop.response_turns import TurnContext, build_turns
from antiphon.service.tool_loop.toolkit import Toolkit, hide_inline_skills

log = logging.getLogger(__name__)

TracerFactory = Callable[[str, str], RunTracer]


class PlannerSettings(Struct, frozen=True, kw_only=True):
    output_limits: OutputTokenLimits = OutputTokenLimits()
    timeouts: Timeouts = Timeouts()
    store_enabled: bool = True  # not --disable-store
    output_retries: int = 2  # how often the model is called again after invalid output
    make_tracer: TracerFactory | None = None  # of a tenant's response, by its id; None: not traced
    loop_limits: ToolLoopLimits = ToolLoopLimits()
    policy: RequestPolicy = RequestPolicy()
    unserved_tools: UnservedTools = "auto"
    cache_key_use: CacheKeyUse = "route"
    reasoning_summaries: ReasoningSummaries = "thought"


class Continuation(Struct, frozen=True, kw_only=True):
    """The source that a request continues, beyond what its body names."""

    resumed: Response | None = None  # the stored Response of a run that another server began
    connection_cache: ConnectionCache | None = None  # unstored responses of the connection that sent the request
    raw_prompt: TextPrompt | TokenPrompt | None = None  # a complete prompt instead of a history

    def find_cached(self, request: CreateResponse) -> Sequence[InputItem] | None:
        """Return the items of the previous response if it belongs to the connection."""
        if self.connection_cache is None or request.previous_response_id is None:
            return None
        return self.connection_cache.find_items(request.previous_response_id)


class ResolvedRequest(Struct, frozen=True):
    """A checked request with its model and the items before its input."""

    tenant: str
    decoded: DecodedRequest  # references resolved, reasoning decrypted
    target: ModelTarget
    earlier: Sequence[InputItem]
    continuation: Continuation
    is_chain_root: bool  # its previous response belongs to the connection
    tool_outputs: Mapping[str, ToolOutputContent] = NO_TOOL_OUTPUTS  # of earlier items that lack them, by their id
    skills: tuple[OfferedSkill, ...] = ()  # in the containers of its tools

    @property
    def is_resumed(self) -> bool:
        return self.continuation.resumed is not None


class PlannedResponse(Struct, frozen=True, kw_only=True):
    """A fully planned response. The owner runs its call or calls `leave`."""

    call: ModelCall
    opening: Response  # queued if in the background, else in_progress; `store` says whether it is stored
    decoded: DecodedRequest  # references resolved; with item ids of this server if it is stored
    ignored: list[str]
    multi_turn: MultiTurn | ExtraChoices | None = None  # anything but one model call
    earlier: Sequence[InputItem] = ()  # items before its input
    is_chain_root: bool = False  # its previous response is not in the store
    obfuscates: bool = False  # the client requested padded deltas
    recovered_entries: tuple[LogEntry, ...] = ()  # log entries of a previous owner that died

    def make_emitter(self, log: EventLog | None) -> Emitter:
        """Create the emitter of a run. All runs of a response use it, so ids and events are the same everywhere."""
        if not self.recovered_entries:
            return Emitter(self.opening, ItemIds(self.opening.id), self.obfuscates, log)
        replay = Replay(self.opening, self.obfuscates, log)
        replay.open()
        replay.feed(self.recovered_entries)
        return replay.emitter

    def set_fence(self, fence: int) -> None:
        """Set the fence of the row once the row is written and owned by this process."""
        if isinstance(self.multi_turn, MultiTurn):
            self.multi_turn.policy.fence = fence

    def leave(self) -> None:
        """Release the model slot of a response that will not run."""
        if self.call.ticket is not None:
            self.call.ticket.leave()


class Planner:
    def __init__(
        self,
        models: Models,
        history_loader: HistoryLoader,
        settings: PlannerSettings,
        attachments: Attachments | None = None,
        keyring: Keyring | None = None,
        toolkit: Toolkit | None = None,
    ) -> None:
        self._models = models
        self._history_loader = history_loader
        self._settings = settings
        self._keyring = Keyring([new_key()]) if keyring is None else keyring
        self._toolkit = toolkit or Toolkit()
        self.moderator: Moderator | None = None  # None: no moderation model is configured
        load = (attachments or Attachments()).load
        self._services = PromptServices(
            load, self._toolkit.find_hosted, self._keyring, settings.unserved_tools, settings.cache_key_use
        )

    def make_encrypter(self, tenant: str) -> Encrypt:
        return self._keyring.make_encrypter(tenant)

    def is_stored(self, request: CreateResponse) -> bool:
        return self._settings.store_enabled and request.store is not False

    async def plan(
        self, tenant: str, decoded: DecodedRequest, raw_prompt: TextPrompt | TokenPrompt | None = None
    ) -> PreparedRequest:
        """Plan a request of any API that is not stored, without a model slot.

        `raw_prompt`: a complete prompt, which is sent to the engine as it is; the request then has no input.
        """
        return await self._prepare(await self._resolve(tenant, decoded, Continuation(raw_prompt=raw_prompt)))

    async def plan_response(
        self, tenant: str, decoded: DecodedRequest, continuation: Continuation | None = None, patient: bool = False
    ) -> PlannedResponse:
        """Plan a response. The items of `decoded` get ids of this server if it is stored.

        `patient` (always set for background): the ticket joins the model's queue only when it is awaited, and the queue
        is never full for it. Otherwise Busy is raised if the queue is full.
        """
        validation.reject_unstored_turn(decoded.request)
        resolved = await self._resolve(tenant, decoded, continuation or Continuation())
        opening = await self._open_response(resolved)
        planned = await self._prepare_response(resolved)
        prepared, request = planned.prepared, planned.decoded.request
        warms_up = is_warmup(request)
        if request.enable_response_messages and not resolved.is_resumed:
            opening.input_messages = [*prepared.messages]
        if planned.ignored:
            opening.ignored_fields = planned.ignored
            _log_ignored(planned.ignored, decoded.ignored)
        multi_turn = None if warms_up else await self._plan_turns(resolved, planned, opening)
        # a moderated run has no slot while its input is judged, perhaps by the same model
        patient = patient or request.moderation is not None
        ticket = self._models.admit(planned.served, planned.capabilities, patient, tenant, opening.service_tier)
        options = request.stream_options
        return PlannedResponse(
            call=self._make_call(tenant, request, to_warmup(prepared) if warms_up else prepared, ticket),
            opening=opening,
            decoded=planned.decoded,
            ignored=planned.ignored,
            multi_turn=multi_turn,
            earlier=resolved.earlier,
            is_chain_root=resolved.is_chain_root,
            obfuscates=options is not None and options.include_obfuscation,
        )

    async def plan_again(self, tenant: str, decoded: DecodedRequest, response: Response) -> PreparedRequest:
        """Plan the first model call of a stored response again, without a model slot."""
        return await self._prepare_response(await self._resolve(tenant, decoded, Continuation(resumed=response)))

    def admit(self, prepared_request: PreparedRequest, patient: bool = False) -> ModelCall:
        """Create a model call with a slot in the model's queue. Raises Busy if the queue is full, unless `patient`.

        Each call needs its own: a parser and a ToolCallResolver serve one model call.
        """
        request = prepared_request.decoded.request
        served, capabilities = prepared_request.served, prepared_request.capabilities
        patient = patient or request.moderation is not None
        ticket = self._models.admit(served, capabilities, patient, prepared_request.tenant, request.service_tier)
        return self._make_call(prepared_request.tenant, request, prepared_request.prepared.copy_for_call(), ticket)

    async def _resolve(self, tenant: str, decoded: DecodedRequest, continuation: Continuation) -> ResolvedRequest:
        """Check a request and look up everything that it refers to: its model, earlier items, references."""
        if continuation.resumed is None:
            decoded = await self._settings.policy.apply(decoded)
        else:
            decoded.request.service_tier = continuation.resumed.service_tier
        request, sent = decoded.request, decoded.sent
        cached_items = continuation.find_cached(request)
        validation.reject_unsupported_fields(request, sent)
        if request.moderation is not None:
            validation.require_moderator(self.moderator, "moderation").check_model(
                request.moderation.model, "moderation.model"
            )
        if continuation.raw_prompt is None:
            validation.require_input(request)
        validation.check_store_use(request, self._settings.store_enabled, cached_items is not None)
        self._toolkit.check_mcp_servers(request)
        served = self._models.find(request.model)
        capabilities = await served.capabilities()
        validation.reject_unsupported_by_engine(request, sent, capabilities, served.engine.name)
        earlier, tool_outputs = cached_items, NO_TOOL_OUTPUTS
        if earlier is None:
            earlier = await self._load_earlier(tenant, request, continuation.resumed)
            tool_outputs = await self._history_loader.load_tool_outputs(tenant, earlier)
        if continuation.resumed is None:
            decoded = await self._resolve_items(tenant, decoded)
            if cached_items is not None and self.is_stored(request):
                decoded, earlier = _prepend_items(decoded, earlier), ()
        if continuation.raw_prompt is None:
            decoded = apply_defaults(decoded, served, capabilities, self._settings.output_limits)
        decoded, skills = await self._find_skills(tenant, decoded, continuation)
        target = make_target(decoded, served, capabilities, self._settings.output_limits)
        is_chain_root = cached_items is not None
        return ResolvedRequest(tenant, decoded, target, earlier, continuation, is_chain_root, tool_outputs, skills)

    async def _find_skills(
        self, tenant: str, decoded: DecodedRequest, continuation: Continuation
    ) -> tuple[DecodedRequest, tuple[OfferedSkill, ...]]:
        """Look up skills. If one is gone since another server began the response, calls of its tool fail."""
        try:
            request, skills = await self._toolkit.find_skills(tenant, decoded.request)
        except InvalidValue:
            if continuation.resumed is None:
                raise
            return decoded, ()
        return replace(decoded, request=request) if skills else decoded, skills

    async def _prepare_response(self, resolved: ResolvedRequest) -> PreparedRequest:
        effective = allow_truncation(resolved.decoded)
        if is_warmup(effective.request):
            effective = ensure_user_message(effective, resolved.earlier)
        return replace(await self._prepare(replace(resolved, decoded=effective)), decoded=resolved.decoded)

    async def _prepare(self, resolved: ResolvedRequest) -> PreparedRequest:
        tenant, decoded, target = resolved.tenant, resolved.decoded, resolved.target
        if (raw_prompt := resolved.continuation.raw_prompt) is None:
            inputs = PromptInputs(tenant, resolved.earlier, resolved.tool_outputs, resolved.skills)
            prepared = await prepare(decoded, inputs, target, self._services)
        else:
            settings = self._settings
            prepared = await prepare_prompt(
                tenant, decoded, raw_prompt, target, settings.output_limits, settings.cache_key_use
            )
        unused = validation.list_ignored_fields(
            decoded.request, decoded.sent, target.capabilities, self._settings.cache_key_use
        )
        return PreparedRequest(
            tenant=tenant,
            decoded=decoded,
            served=target.served,
            capabilities=target.capabilities,
            prepared=prepared,
            ignored=[*decoded.ignored, *unused, *prepared.ignored],
        )

    async def _open_response(self, resolved: ResolvedRequest) -> Response:
        """Return the initial Response: the stored one of a resumed run, otherwise a new one."""
        if (resumed := resolved.continuation.resumed) is not None:
            set_response_id(resumed.id)
            return resumed
        decoded, name = resolved.decoded, resolved.target.served.name
        stored = self.is_stored(decoded.request)
        request = decoded.request
        if resolved.skills:
            request = replace(request, tools=hide_inline_skills(request.tools))
        opening = open_response(request, decoded.sent, new_id("resp"), name, int(time()), store=stored)
        set_response_id(opening.id)
        if stored:
            await _assign_input_ids(decoded.request, opening.id)
        return opening

    async def _plan_next_turn(
        self, resolved: ResolvedRequest, decoded: DecodedRequest, tool_texts: Mapping[str, ToolOutputContent]
    ) -> ModelCall:
        """Plan another turn of the same response, for which fewer tokens may remain."""
        tenant, target = resolved.tenant, resolved.target
        target = make_target(decoded, target.served, target.capabilities, self._settings.output_limits)
        tool_texts = {**resolved.tool_outputs, **tool_texts}
        inputs = PromptInputs(tenant, resolved.earlier, tool_texts, resolved.skills)
        prepared = await prepare(decoded, inputs, target, self._services)
        ticket = self._models.admit(target.served, target.capabilities, True, tenant, decoded.request.service_tier)
        return self._make_call(tenant, decoded.request, prepared, ticket)

    async def _plan_turns(
        self, resolved: ResolvedRequest, planned: PreparedRequest, opening: Response
    ) -> MultiTurn | ExtraChoices | None:
        """Plan compaction, tool turns or several choices; None for a single model call."""
        decoded, prepared = planned.decoded, planned.prepared
        waits = self._toolkit.should_wait(decoded.request, opening.store)
        context = TurnContext(planned.tenant, opening.id, decoded, resolved.earlier, waits, resolved.is_resumed)
        step = await make_compaction_step(self, self._keyring, planned)
        plan_turn = partial(self._plan_next_turn, resolved)
        turns = await build_turns(self._toolkit, context, prepared, plan_turn, step)
        if (decoded.request.n or 1) > 1:
            if turns is not None or not prepared.tool_resolver.is_empty:
                raise validation.choices_error()
            others = [self.admit(each, patient=True) for each in repeat_request(planned, decoded.request.n or 1)[1:]]
            return ExtraChoices(others=others, hide_logprobs=not find_logprobs_field(decoded.request))
        if turns is None:
            return None
        return MultiTurn(
            policy=turns, limits=replace(self._settings.loop_limits, max_calls=decoded.request.max_tool_calls)
        )

    def _make_call(
        self, tenant: str, request: CreateResponse, prepared: PreparedPrompt, ticket: Ticket | None
    ) -> ModelCall:
        encrypts_reasoning = "reasoning.encrypted_content" in request.include
        style = request.reasoning.summary or request.reasoning.generate_summary
        # several choices are ordered at their end, when no item is open for a summary
        by_model = self._settings.reasoning_summaries == "model" and (request.n or 1) == 1
        return ModelCall(
            engine=prepared.engine,
            generation=prepared.generation,
            parser=prepared.parser,
            resolver=prepared.tool_resolver,
            retry_policy=None
            if prepared.retry_policy is None
            else replace(prepared.retry_policy, max_retries=self._settings.output_retries),
            summarise_reasoning=bool(style) and not by_model,
            write_summary=SummaryWriter(self, tenant, request, style).write if style and by_model else None,
            encrypt_reasoning=self._keyring.make_encrypter(tenant) if encrypts_reasoning else None,
            ticket=ticket,
            timeouts=self._settings.timeouts,
            is_warmup=prepared.is_warmup,
            moderation=None
            if self.moderator is None or request.moderation is None
            else self.moderator.plan(tenant, request.moderation, prepared.messages),
            logprobs_field=None if prepared.is_warmup else find_logprobs_field(request),
            new_tracer=None if self._settings.make_tracer is None else partial(self._settings.make_tracer, tenant),
        )

    async def _resolve_items(self, tenant: str, decoded: DecodedRequest) -> DecodedRequest:
        """Decrypt the reasoning in the input and replace references by their items."""
        decoded = await self._decrypt_reasoning(tenant, decoded)
        if not any(map(is_reference, decoded.request.input)):
            return decoded
        items = await self._history_loader.resolve_references(tenant, decoded.request.input)
        return replace(decoded, request=replace(decoded.request, input=items))

    async def _load_earlier(
        self, tenant: str, request: CreateResponse, resumed: Response | None
    ) -> Sequence[InputItem]:
        if request.previous_response_id is None and request.conversation is None:
            return ()
        earlier = await self._history_loader.load_earlier(tenant, request, None if resumed is None else resumed.id)
        if not (earlier or request.input):
            raise MissingParameter("Missing required parameter: 'input' (the conversation is empty).", param="input")
        return earlier

    async def _decrypt_reasoning(self, tenant: str, decoded: DecodedRequest) -> DecodedRequest:
        """Decrypt the reasoning items that the client sent back. Reasoning is stored decrypted."""
        input_items = decoded.request.input
        if Reasoning not in map(type, input_items):
            return decoded
        items, foreign_fields = await self._keyring.decrypt_items(tenant, input_items)
        if items is input_items:
            return decoded
        return replace(
            decoded, request=replace(decoded.request, input=items), ignored=[*decoded.ignored, *foreign_fields]
        )


def _prepend_items(decoded: DecodedRequest, earlier: Sequence[InputItem]) -> DecodedRequest:
    """Prepend the earlier items to the input, for a stored response that continues an unstored one."""
    request = decoded.request
    return replace(decoded, request=replace(request, input=[*earlier, *request.input]), sent=decoded.sent | {"input"})


async def _assign_input_ids(request: CreateResponse, response_id: str) -> None:
    """Give the input items ids of this server; in a thread if there are many."""
    items, ids = request.input, ItemIds(response_id, "input")
    if len(items) <= MAX_INLINE_ITEMS:
        request.input = assign_ids(items, ids)
    else:
        request.input = await asyncio.to_thread(assign_ids, items, ids)


def _log_ignored(ignored: Sequence[str], unknown: Sequence[str]) -> None:
    """Log fields without effect. Names unknown to this server are a client's content, so only counted."""
    names = [name for name in ignored if name not in unknown]
    log.info("fields without effect: %s", ", ".join([*names, *([f"{len(unknown)} unknown"] if unknown else [])]))
