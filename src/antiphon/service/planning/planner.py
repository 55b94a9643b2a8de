"""Planner: decides everything about a request before it runs, for new requests and for runs taken over from a dead
server.

Errors of a request are raised here, so the client gets a plain 4xx. Nothing is written.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import chain
from time import time

from msgspec import Struct
from msgspec.structs import replace

from antiphon.admission import Ticket
from antiphon.agent.model_call import ModelCall
from antiphon.agent.n_choices import ExtraChoices
from antiphon.agent.run import MultiTurn
from antiphon.agent.run_tracer import RunTracer
from antiphon.agent.timeouts import Timeouts
from antiphon.agent.tool_loop import ToolLoopLimits
from antiphon.core.deltas import ToolOutputContent
from antiphon.core.emitter.emitter import Emitter, EventLog
from antiphon.core.emitter.event_log import LogEntry
from antiphon.core.encrypted_reasoning import Encrypt
from antiphon.core.prompt import TextPrompt, TokenPrompt
from antiphon.core.replay.replay import Replay
from antiphon.engines.base import Capabilities
from antiphon.errors import MissingParameter
from antiphon.ids import ItemIds, new_id
from antiphon.observe.log_context import set_response_id
from antiphon.protocol.decoding.codec import DecodedRequest
from antiphon.protocol.decoding.stored_items import assign_ids
from antiphon.protocol.types.items import InputItem, ItemReference, Message, Reasoning
from antiphon.protocol.types.request import CreateResponse
from antiphon.protocol.types.response import Response
from antiphon.service.access.service_tiers import get_rank
from antiphon.service.attachments.attachments import Attachments
from antiphon.service.encryption.keyring import Keyring, new_key
from antiphon.service.model_io.models import Models
from antiphon.service.model_io.sampling import wants_logprobs
from antiphon.service.model_io.served_model import OutputTokenLimits, ServedModel
from antiphon.service.persistence.connection_cache import ConnectionCache
from antiphon.service.persistence.history_loader import HistoryLoader
from antiphon.service.planning.request_policy import RequestPolicy
from antiphon.service.planning.request_profile import RequestProfile, RequestProfiles
from antiphon.service.planning.validation import (
    check_store_use,
    choices_error,
    list_ignored_fields,
    reject_unsupported_by_engine,
    reject_unsupported_fields,
    require_input,
)
from antiphon.service.prompting.call_template import ModelTarget, make_target
from antiphon.service.prompting.engine_fields import apply_engine_fields
from antiphon.service.prompting.prepare import (
    MAX_INLINE_ITEMS,
    PreparedPrompt,
    PromptInputs,
    PromptServices,
    await_prepared,
    prepare,
)
from antiphon.service.prompting.prepared_request import PreparedRequest, repeat_request
from antiphon.service.prompting.raw_prompts import prepare_prompt
from antiphon.service.prompting.warmup import ensure_user_message, to_warmup
from antiphon.service.tool_loop.compaction_step import allow_truncation, make_compaction_step
from antiphon.service.tool_loop.response_turns import MultiTurnSetup, TurnContext, needs_multi_turn
from antiphon.service.tool_loop.toolkit import Toolkit

TracerFactory = Callable[[str, str], RunTracer]

_run_in_thread = asyncio.to_thread

_PLAIN_ITEMS = frozenset({Message})  # items that need no lookup, decryption or tool step


class PlannerSettings(Struct, frozen=True, kw_only=True):
    """Operator settings of the planner."""

    output_limits: OutputTokenLimits = OutputTokenLimits()
    timeouts: Timeouts = Timeouts()
    store_enabled: bool = True  # not --disable-store
    output_retries: int = 2  # how often the model is called again after invalid output
    make_tracer: TracerFactory | None = None  # of a tenant's response, by its id; None: not traced
    loop_limits: ToolLoopLimits = ToolLoopLimits()
    policy: RequestPolicy = RequestPolicy()


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
        """Create the emitter of a run. All runs of a response use it, so ids and events are the same in every
        process.
        """
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
        self._services = PromptServices((attachments or Attachments()).load, self._toolkit.find_hosted, self._keyring)
        self._profiles = RequestProfiles(
            models, self._toolkit, settings.policy, settings.output_limits, settings.store_enabled
        )

    def make_encrypter(self, tenant: str) -> Encrypt:
        """Return a function that encrypts reasoning for the tenant."""
        return self._keyring.make_encrypter(tenant)

    def is_stored(self, request: CreateResponse) -> bool:
        """Whether the response of this request is stored."""
        return self._settings.store_enabled and request.store is not False

    async def plan(
        self,
        tenant: str,
        decoded: DecodedRequest,
        opening: Response | None = None,
        patient: bool = False,
        connection_cache: ConnectionCache | None = None,
    ) -> PlannedResponse:
        """Plan a response. The items of `decoded` get ids of this server if it is stored.

        `opening`: the stored Response of a run that is resumed. `connection_cache`: unstored responses of the
        connection. `patient` (always set for background): the ticket joins the model's queue only when it is awaited,
        and the queue is never full for it. Otherwise Busy is raised if the queue is full.
        """
        decoded, profile = self._profiles.find_cached(decoded) or await self._profiles.load(decoded, opening)
        request, target, resumed = decoded.request, profile.target, opening is not None
        previous_id = request.previous_response_id
        cached_items = None if connection_cache is None else connection_cache.find_items(previous_id or "")
        is_plain = bool(request.input) and _PLAIN_ITEMS.issuperset(map(type, request.input))
        if not is_plain or profile.needs_store or not self._settings.store_enabled:
            require_input(request)
            check_store_use(request, self._settings.store_enabled, cached_items is not None)
        earlier: Sequence[InputItem] = cached_items or ()
        if cached_items is None and (previous_id is not None or request.conversation is not None):
            earlier = await self._load_earlier(tenant, request, opening)
        if opening is None:
            opening = _make_opening(profile, previous_id)
        set_response_id(opening.id)
        if not (resumed or (is_plain and cached_items is None)):
            decoded, earlier = await self._resolve_items(tenant, decoded, opening, earlier, cached_items)
        if opening.store and not resumed:
            await _assign_input_ids(decoded.request, opening.id)
        is_simple = is_plain and not (earlier or cached_items)  # no item requires more than an answer
        effective = decoded
        if not (is_simple and profile.single_turn):
            effective = allow_truncation(ensure_user_message(decoded, earlier) if profile.is_warmup else decoded)
        prepared = prepare(effective, PromptInputs(tenant, earlier, compactions_open=is_simple), target, self._services)
        if not isinstance(prepared, PreparedPrompt):
            prepared = await prepared
        if profile.is_warmup:
            prepared = to_warmup(prepared)
        if request.enable_response_messages and not resumed:
            opening.input_messages = [*prepared.messages]
        multi_turn = None
        is_simple = is_simple or not needs_multi_turn(chain(earlier, decoded.request.input))
        if not (profile.is_warmup or (is_simple and profile.single_turn)):
            waits = self._toolkit.should_wait(request, opening.store)
            context = TurnContext(tenant, opening.id, decoded, earlier, waits_for_outputs=waits)
            multi_turn = await self._plan_turns(context, prepared, target, resumed)
        ticket = self._models.admit(target.served, target.capabilities, patient, tenant, profile.rank)
        return PlannedResponse(
            call=self._make_call(tenant, request, prepared, ticket),
            opening=opening,
            decoded=decoded,
            ignored=[*decoded.ignored, *profile.ignored, *prepared.ignored],
            multi_turn=multi_turn,
            earlier=earlier,
            is_chain_root=cached_items is not None,
            obfuscates=profile.obfuscates,
        )

    async def prepare_request(self, tenant: str, decoded: DecodedRequest) -> PreparedRequest:
        """Prepare a request that is not stored, without a model slot: for the other APIs and for token counting."""
        decoded = await self._settings.policy.apply(decoded)
        request, sent = decoded.request, decoded.sent
        reject_unsupported_fields(request, sent)
        require_input(request)
        check_store_use(request, self._settings.store_enabled)
        self._toolkit.check_mcp_servers(request)
        served, capabilities = await self._resolve_model(decoded)
        earlier = await self._load_earlier(tenant, request, None)
        decoded = await self._decrypt_reasoning(tenant, decoded)
        request = decoded.request
        if any(type(item) is ItemReference for item in request.input):
            items = await self._history_loader.resolve_references(tenant, request.input)
            decoded = replace(decoded, request=replace(request, input=items))
        target = make_target(decoded, served, capabilities, self._settings.output_limits)
        prepared = await await_prepared(prepare(decoded, PromptInputs(tenant, earlier), target, self._services))
        ignored_fields = [*decoded.ignored, *list_ignored_fields(request, sent), *prepared.ignored]
        return PreparedRequest(
            tenant=tenant,
            decoded=decoded,
            served=served,
            capabilities=capabilities,
            prepared=prepared,
            ignored=ignored_fields,
        )

    async def prepare_prompts(
        self, tenant: str, decoded: DecodedRequest, prompts: Sequence[TextPrompt | TokenPrompt]
    ) -> list[PreparedRequest]:
        """Prepare raw prompts that are complete as sent; the request has no input."""
        decoded = await self._settings.policy.apply(decoded)
        served, capabilities = await self._resolve_model(decoded)
        output_limits, requests = served.output_limits or self._settings.output_limits, []
        for prompt in prompts:
            prepared = await prepare_prompt(decoded, prompt, served, capabilities, output_limits)
            prepared = replace(prepared, generation=apply_engine_fields(tenant, decoded.request, prepared.generation))
            ignored_fields = [*decoded.ignored, *list_ignored_fields(decoded.request, decoded.sent)]
            requests.append(
                PreparedRequest(
                    tenant=tenant,
                    decoded=decoded,
                    served=served,
                    capabilities=capabilities,
                    prepared=prepared,
                    ignored=ignored_fields,
                )
            )
        return requests

    def admit(self, prepared_request: PreparedRequest, patient: bool = False) -> ModelCall:
        """Create a model call with a slot in the model's queue. Raises Busy if the queue is full, unless `patient`.

        Each call needs its own: a parser and a ToolCallResolver serve one model call.
        """
        request = prepared_request.decoded.request
        ticket = self._models.admit(
            prepared_request.served, prepared_request.capabilities, patient, prepared_request.tenant, get_rank(request)
        )
        return self._make_call(prepared_request.tenant, request, prepared_request.prepared.copy_for_call(), ticket)

    async def _resolve_model(self, decoded: DecodedRequest) -> tuple[ServedModel, Capabilities]:
        served = self._models.find(decoded.request.model)
        capabilities = await served.capabilities()
        reject_unsupported_by_engine(decoded.request, decoded.sent, capabilities, served.engine.name)
        return served, capabilities

    async def _plan_next_turn(
        self,
        tenant: str,
        earlier: Sequence[InputItem],
        target: ModelTarget,
        decoded: DecodedRequest,
        tool_texts: Mapping[str, ToolOutputContent],
    ) -> ModelCall:
        """Plan another turn of the same response, for which fewer tokens may remain."""
        target = make_target(decoded, target.served, target.capabilities, self._settings.output_limits)
        prepared = await await_prepared(
            prepare(decoded, PromptInputs(tenant, earlier, tool_texts), target, self._services)
        )
        ticket = self._models.admit(target.served, target.capabilities, True, tenant, get_rank(decoded.request))
        return self._make_call(tenant, decoded.request, prepared, ticket)

    async def _plan_turns(
        self, context: TurnContext, prepared: PreparedPrompt, target: ModelTarget, resumed: bool
    ) -> MultiTurn | ExtraChoices | None:
        """Plan compaction, tool turns or several choices; None for a single model call.

        `resumed`: another server had started the response.
        """
        tenant, decoded = context.tenant, context.decoded
        prepared_request = PreparedRequest(
            tenant=tenant,
            decoded=decoded,
            served=target.served,
            capabilities=target.capabilities,
            prepared=prepared,
            ignored=[],
        )
        step = await make_compaction_step(self, self._keyring, prepared_request)
        setup = MultiTurnSetup(self._toolkit, context, resumed)
        turns = await setup.build_turns(prepared, partial(self._plan_next_turn, tenant, context.earlier, target), step)
        if (decoded.request.n or 1) > 1:
            if turns is not None or not prepared.tool_resolver.is_empty:
                raise choices_error()
            return self._plan_choices(prepared_request)
        if turns is None:
            return None
        return MultiTurn(
            policy=turns, limits=replace(self._settings.loop_limits, max_calls=decoded.request.max_tool_calls)
        )

    def _plan_choices(self, prepared_request: PreparedRequest) -> ExtraChoices:
        """Plan the calls of the additional choices; each waits in the model's queue."""
        request = prepared_request.decoded.request
        others = [self.admit(each, patient=True) for each in repeat_request(prepared_request, request.n or 1)[1:]]
        return ExtraChoices(others=others, hide_logprobs=not wants_logprobs(request))

    def _make_call(
        self, tenant: str, request: CreateResponse, prepared: PreparedPrompt, ticket: Ticket | None
    ) -> ModelCall:
        encrypts_reasoning = "reasoning.encrypted_content" in request.include
        return ModelCall(
            engine=prepared.engine,
            generation=prepared.generation,
            parser=prepared.parser,
            resolver=prepared.tool_resolver,
            retry_policy=None
            if prepared.retry_policy is None
            else replace(prepared.retry_policy, max_retries=self._settings.output_retries),
            summarise_reasoning=bool(request.reasoning.summary or request.reasoning.generate_summary),
            encrypt_reasoning=self._keyring.make_encrypter(tenant) if encrypts_reasoning else None,
            ticket=ticket,
            timeouts=self._settings.timeouts,
            is_warmup=prepared.is_warmup,
            new_tracer=None if self._settings.make_tracer is None else partial(self._settings.make_tracer, tenant),
        )

    async def _resolve_items(
        self,
        tenant: str,
        decoded: DecodedRequest,
        opening: Response,
        earlier: Sequence[InputItem],
        cached_items: Sequence[InputItem] | None,
    ) -> tuple[DecodedRequest, Sequence[InputItem]]:
        """Resolve references and decrypt reasoning; returns the request and the items before it."""
        decoded = await self._decrypt_reasoning(tenant, decoded)
        if opening.store and cached_items is not None:
            decoded, earlier = _prepend_items(decoded, cached_items), ()
        if ItemReference in map(type, decoded.request.input):
            items = await self._history_loader.resolve_references(tenant, decoded.request.input)
            decoded = replace(decoded, request=replace(decoded.request, input=items))
        return decoded, earlier

    async def _load_earlier(
        self, tenant: str, request: CreateResponse, opening: Response | None
    ) -> Sequence[InputItem]:
        if request.previous_response_id is None and request.conversation is None:
            return ()
        earlier = await self._history_loader.load_earlier(tenant, request, None if opening is None else opening.id)
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
        request.input = await _run_in_thread(assign_ids, items, ids)


def _make_opening(profile: RequestProfile, previous_id: str | None) -> Response:
    """Return the Response of a new run: a copy of the profile's, with an id and a time of its own."""
    return replace(
        profile.opening, id=new_id("resp"), created_at=int(time()), output=[], previous_response_id=previous_id
    )
