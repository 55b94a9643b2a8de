"""Chat completions, legacy completions and Anthropic's messages, independent of the transport.

Requests are planned like those of the Responses API and answered by a `CompletionRun`: one run slot, and a slot of the
model for each choice. Prompts of legacy completions go to the engine unrendered. The caller drives the run or waits for
its result, and always closes it. Errors of a request are raised before the run is returned, under the field names of
its API.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from time import time

from msgspec import Struct
from msgspec.structs import replace

from antiphon.agent.completion_run import CompletionRun
from antiphon.core.dialects.anthropic_emitter import AnthropicEmitter
from antiphon.core.dialects.anthropic_request import AnthropicRequest
from antiphon.core.dialects.chat_emitter import ChatEmitter, ChatOutputOptions
from antiphon.core.dialects.chat_request import ChatRequest
from antiphon.core.dialects.completion_fields import RequestedFormat
from antiphon.core.dialects.completions_emitter import CompletionEmitter, CompletionOutputOptions
from antiphon.core.dialects.completions_request import CompletionRequest
from antiphon.core.dialects.dialect import CompletionHeader, Dialect
from antiphon.core.dialects.translation import ParamNames
from antiphon.core.prompt import TextPrompt
from antiphon.errors import AntiphonError, Busy, UnsupportedParameter
from antiphon.ids import new_dashed_id, new_id
from antiphon.protocol.decoding.codec import DecodedRequest
from antiphon.protocol.types.anthropic.events import AnthropicMessage, MessageUsage
from antiphon.protocol.types.completions import CompletionFields, CreateCompletion
from antiphon.protocol.types.response import ReasoningConfig
from antiphon.service.model_io.models import Models
from antiphon.service.planning.planner import Planner
from antiphon.service.planning.validation import unsupported_error
from antiphon.service.prompting.engine_fields import make_salt
from antiphon.service.prompting.prepared_request import PreparedRequest, repeat_request
from antiphon.service.runs.active_runs import RunSlot
from antiphon.service.runs.detached_runs import DetachedRuns
from antiphon.service.tokens import InputTokenCounter

# A started run, which the caller drives or waits for and always closes, and the names of fields that have no effect.
AcceptedCompletion = tuple[CompletionRun, list[str]]


class Completions(Struct, frozen=True, eq=False):
    _models: Models
    _planner: Planner
    _detached_runs: DetachedRuns
    _counter: InputTokenCounter

    def open(
        self, requests: Sequence[PreparedRequest], dialect: Dialect, names: ParamNames | None = None
    ) -> AcceptedCompletion:
        """Open a run with one choice per request. Raises Busy if the first has no slot; the others wait for theirs.

        `names`: those of the client's API; default: those of the Responses API.
        """
        slot = self._detached_runs.acquire(requests[0].tenant)
        try:
            first = self._planner.admit(requests[0])
        except Busy:
            slot.release()
            raise
        others = [self._planner.admit(request, patient=True) for request in requests[1:]]
        error_mapper = None if names is None else names.translate_error
        slot.run = run = CompletionRun([first, *others], dialect, partial(self._on_end, slot), error_mapper)
        ignored = requests[0].ignored
        return run, ignored if names is None else names.translate_ignored(ignored, requests[0].decoded.ignored)

    async def create_chat(self, tenant: str, parsed: ChatRequest) -> AcceptedCompletion:
        try:
            planned = await self._planner.plan(tenant, parsed.decoded)
            prepared_request = _apply_extensions(planned, parsed.request, parsed.output_format, tenant)
            head = _make_header(new_dashed_id("chatcmpl"), prepared_request, parsed.request.service_tier)
            emitter = ChatEmitter(head, await _make_chat_options(prepared_request, parsed), partial(new_id, "call"))
            calls = repeat_request(prepared_request, parsed.request.n or 1)
            return self.open(calls, emitter, parsed.names)
        except AntiphonError as error:
            raise parsed.names.translate_error(error) from None

    async def create_completion(self, tenant: str, parsed: CompletionRequest) -> AcceptedCompletion:
        try:
            planned = [await self._planner.plan(tenant, parsed.decoded, prompt) for prompt in parsed.prompts]
            request = _request_prompt_logprobs(planned[0], parsed.request)
            requests = [_apply_extensions(each, request, parsed.output_format, tenant) for each in planned]
            head = _make_header(new_dashed_id("cmpl"), requests[0], parsed.request.service_tier)
            options = await _make_completion_options(requests, parsed)
            if options.choices_per_prompt < options.calls_per_prompt:
                requests = [_request_logprobs(each) for each in requests]
            calls = [call for each in requests for call in repeat_request(each, options.calls_per_prompt)]
            return self.open(calls, CompletionEmitter(head, options), parsed.names)
        except AntiphonError as error:
            raise parsed.names.translate_error(error) from None

    async def create_message(self, tenant: str, parsed: AnthropicRequest, request_id: str) -> AcceptedCompletion:
        try:
            prepared_request = await self._planner.plan(tenant, await self._apply_effort(parsed))
            # for `message_start`; usually not known yet
            usage = MessageUsage(input_tokens=prepared_request.prepared.tokens or 0)
            message = AnthropicMessage(id=new_id("msg"), model=prepared_request.served.name, usage=usage)
            emitter = AnthropicEmitter(message, parsed, new_id, request_id, self._planner.make_encrypter(tenant))
            return self.open([prepared_request], emitter, parsed.names)
        except AntiphonError as error:
            raise parsed.names.translate_error(error) from error

    async def count_message(self, tenant: str, parsed: AnthropicRequest) -> tuple[int, list[str]]:
        try:
            decoded = await self._apply_effort(parsed)
            tokens, ignored = await self._counter.count(tenant, decoded)
            return tokens, parsed.names.translate_ignored(ignored, decoded.ignored)
        except AntiphonError as error:
            raise parsed.names.translate_error(error) from error

    async def _apply_effort(self, parsed: AnthropicRequest) -> DecodedRequest:
        """Pass `output_config.effort` on to models that support an effort; report it as ignored otherwise."""
        decoded = parsed.decoded
        if parsed.effort is None:
            return decoded
        capabilities = await self._models.find(decoded.request.model).capabilities()
        if "reasoning.effort" not in capabilities.supported_fields:
            return replace(decoded, ignored=[*decoded.ignored, "output_config.effort"])
        request = replace(decoded.request, reasoning=ReasoningConfig(effort=parsed.effort))
        return replace(decoded, request=request, sent=decoded.sent | {"reasoning"})

    def _on_end(self, slot: RunSlot, run: CompletionRun) -> None:
        slot.release()
        self._detached_runs.on_end(run)


def _make_header(completion_id: str, prepared_request: PreparedRequest, requested_tier: str | None) -> CompletionHeader:
    """Return the fields of every chunk. The tier is reported if one was requested or another than the default used."""
    tier = prepared_request.decoded.request.service_tier
    return CompletionHeader(
        id=completion_id,
        created=int(time()),
        model=prepared_request.served.name,
        service_tier=tier if requested_tier is not None or tier != "default" else None,
    )


async def _make_chat_options(prepared_request: PreparedRequest, parsed: ChatRequest) -> ChatOutputOptions:
    request = parsed.request
    options = request.stream_options if request.stream else None
    running = options is not None and options.continuous_usage_stats
    return ChatOutputOptions(
        choices=request.n or 1,
        include_usage=not request.stream or (options is not None and options.include_usage),
        running_usage_base=await _count_prompt_tokens(prepared_request) if running else None,
        include_reasoning=request.include_reasoning,
        legacy_function_call=request.functions is not None,
        include_obfuscation=options is not None and options.include_obfuscation,
    )


async def _make_completion_options(
    requests: list[PreparedRequest], parsed: CompletionRequest
) -> CompletionOutputOptions:
    request = parsed.request
    options = request.stream_options if request.stream else None
    running = options is not None and options.continuous_usage_stats
    return CompletionOutputOptions(
        prompt_count=len(requests),
        calls_per_prompt=max(request.best_of or 1, request.n or 1),
        choices_per_prompt=request.n or 1,
        include_usage=not request.stream or (options is not None and options.include_usage),
        running_usage_base=sum([await _count_prompt_tokens(each) for each in requests]) if running else None,
        top_logprobs=request.logprobs,
        echoes=[await _load_prompt_text(each) for each in requests] if request.echo else (),
    )


async def _count_prompt_tokens(prepared_request: PreparedRequest) -> int:
    """Count the prompt's tokens before the engine reports them, for continuous usage statistics."""
    if (tokens := await prepared_request.count_tokens()) is None:
        raise UnsupportedParameter(
            f"The {prepared_request.served.engine.name} engine reports prompt tokens only at the end of a stream.",
            param="stream_options.continuous_usage_stats",
        )
    return tokens


def _request_prompt_logprobs(prepared_request: PreparedRequest, request: CreateCompletion) -> CreateCompletion:
    """Return the request, with `prompt_logprobs` added when `echo` and `logprobs` are combined."""
    if not request.echo or request.logprobs is None:
        return request
    _require_feature(prepared_request, "prompt_logprobs", "echo")
    return replace(request, prompt_logprobs=max(request.logprobs, request.prompt_logprobs or 0))


def _request_logprobs(prepared_request: PreparedRequest) -> PreparedRequest:
    """Request log probabilities, by which the choices of `best_of` are ranked."""
    _require_feature(prepared_request, "top_logprobs", "best_of")
    prepared = prepared_request.prepared
    sampling = replace(prepared.generation.sampling, logprobs=prepared.generation.sampling.logprobs or 0)
    return replace(
        prepared_request, prepared=replace(prepared, generation=replace(prepared.generation, sampling=sampling))
    )


def _require_feature(prepared_request: PreparedRequest, name: str, param: str) -> None:
    if name not in prepared_request.capabilities.supported_fields:
        raise unsupported_error(name, prepared_request.capabilities, prepared_request.served.engine.name, param)


async def _load_prompt_text(prepared_request: PreparedRequest) -> str:
    prompt, served = prepared_request.prepared.generation.prompt, prepared_request.served
    if isinstance(prompt, TextPrompt):
        return "".join([segment.text for segment in prompt.segments])
    if "detokenize" not in prepared_request.capabilities.tasks:
        raise UnsupportedParameter(
            f"The {served.engine.name} engine cannot detokenize the prompt: send it as text.", param="echo"
        )
    return await served.engine.detokenize(served.model, getattr(prompt, "tokens", ()))


def _apply_extensions(
    prepared_request: PreparedRequest, request: CompletionFields, output_format: RequestedFormat, tenant: str
) -> PreparedRequest:
    """Apply the fields that chat completions and completions have beyond `CreateResponse` to the generation request.

    Raises UnsupportedParameter for one that the engine does not support.
    """
    capabilities, prepared = prepared_request.capabilities, prepared_request.prepared
    for name, param in _list_required_features(request, output_format):
        if name not in capabilities.supported_fields:
            raise unsupported_error(name, capabilities, prepared_request.served.engine.name, param)
    generation = prepared.generation
    sampling = replace(
        generation.sampling,
        logit_bias=request.logit_bias or None,
        min_tokens=request.min_tokens or None,
        stop_token_ids=generation.sampling.stop_token_ids + tuple(request.stop_token_ids or ()),
        prompt_logprobs=request.prompt_logprobs,
        return_token_ids=bool(request.return_token_ids),
    )
    extended = replace(
        generation,
        sampling=sampling,
        constraint=output_format.grammar or generation.constraint,
        salt=generation.salt if request.cache_salt is None else make_salt(tenant, request.cache_salt),
        priority=request.priority or None,
        kv_transfer_params=request.kv_transfer_params,
    )
    return replace(prepared_request, prepared=replace(prepared, generation=extended))


def _list_required_features(request: CompletionFields, output_format: RequestedFormat) -> Iterator[tuple[str, str]]:
    """Yield each engine feature that the request needs, with the field that requires it."""
    for name in ("logit_bias", "min_tokens", "stop_token_ids", "return_token_ids", "priority"):
        if getattr(request, name):
            yield name, name
    for name in ("prompt_logprobs", "cache_salt", "kv_transfer_params"):
        if getattr(request, name) is not None:
            yield name, name
    if output_format.grammar is not None:
        yield f"grammar.{output_format.grammar.syntax}", output_format.param
