"""Legacy completions, independent of the transport: prompts go to the engine unrendered, and one `CompletionRun`
answers.

Errors of a request are raised before the run is returned, under the field names of this API.
"""

from time import time

from msgspec.structs import replace

from antiphon.core.dialects.completions_emitter import CompletionEmitter, CompletionOutputOptions
from antiphon.core.dialects.completions_request import CompletionRequest
from antiphon.core.dialects.dialect import CompletionHeader
from antiphon.core.prompt import TextPrompt
from antiphon.errors import AntiphonError, UnsupportedParameter
from antiphon.ids import new_dashed_id
from antiphon.protocol.types.completions import CreateCompletion
from antiphon.service.access.service_tiers import tier_to_report
from antiphon.service.chat import count_prompt_tokens
from antiphon.service.planning.apply_extensions import apply_extensions
from antiphon.service.planning.planner import Planner
from antiphon.service.planning.validation import unsupported_error
from antiphon.service.prompting.prepared_request import PreparedRequest, repeat_request
from antiphon.service.runs.completion_runs import AcceptedCompletion, CompletionRuns


class Completions:
    def __init__(self, planner: Planner, runs: CompletionRuns) -> None:
        self._planner = planner
        self._runs = runs

    async def create(self, tenant: str, parsed: CompletionRequest) -> AcceptedCompletion:
        try:
            requests = [await self._planner.plan(tenant, parsed.decoded, prompt) for prompt in parsed.prompts]
            request = _request_prompt_logprobs(requests[0], parsed.request)
            extended = [apply_extensions(each, request, parsed.output_format, tenant) for each in requests]
            return await self._start_runs(extended, parsed)
        except AntiphonError as error:
            raise parsed.names.translate_error(error) from None

    async def _start_runs(self, requests: list[PreparedRequest], parsed: CompletionRequest) -> AcceptedCompletion:
        tier = tier_to_report(parsed.request.service_tier, requests[0].decoded.request.service_tier)
        head = CompletionHeader(
            id=new_dashed_id("cmpl"), created=int(time()), model=requests[0].served.name, service_tier=tier
        )
        options = await _make_options(requests, parsed)
        if options.choices_per_prompt < options.calls_per_prompt:
            requests = [_request_logprobs(each) for each in requests]
        calls = [call for each in requests for call in repeat_request(each, options.calls_per_prompt)]
        return self._runs.open(calls, CompletionEmitter(head, options), parsed.names.translate_error)


async def _make_options(requests: list[PreparedRequest], parsed: CompletionRequest) -> CompletionOutputOptions:
    request = parsed.request
    options = request.stream_options if request.stream else None
    running = options is not None and options.continuous_usage_stats
    return CompletionOutputOptions(
        prompt_count=len(requests),
        calls_per_prompt=max(request.best_of or 1, request.n or 1),
        choices_per_prompt=request.n or 1,
        include_usage=not request.stream or (options is not None and options.include_usage),
        running_usage_base=sum([await count_prompt_tokens(each) for each in requests]) if running else None,
        top_logprobs=request.logprobs,
        echoes=[await _load_prompt_text(each) for each in requests] if request.echo else (),
    )


def _request_prompt_logprobs(prepared_request: PreparedRequest, request: CreateCompletion) -> CreateCompletion:
    """Return the request, with `prompt_logprobs` added when `echo` and `logprobs` are combined."""
    if not request.echo or request.logprobs is None:
        return request
    if "prompt_logprobs" not in prepared_request.capabilities.supported_fields:
        raise unsupported_error(
            "prompt_logprobs", prepared_request.capabilities, prepared_request.served.engine.name, "echo"
        )
    return replace(request, prompt_logprobs=max(request.logprobs, request.prompt_logprobs or 0))


def _request_logprobs(prepared_request: PreparedRequest) -> PreparedRequest:
    """Request log probabilities, by which the choices of `best_of` are ranked."""
    if "top_logprobs" not in prepared_request.capabilities.supported_fields:
        raise unsupported_error(
            "top_logprobs", prepared_request.capabilities, prepared_request.served.engine.name, "best_of"
        )
    prepared = prepared_request.prepared
    sampling = replace(prepared.generation.sampling, logprobs=prepared.generation.sampling.logprobs or 0)
    return replace(
        prepared_request, prepared=replace(prepared, generation=replace(prepared.generation, sampling=sampling))
    )


async def _load_prompt_text(prepared_request: PreparedRequest) -> str:
    prompt, served = prepared_request.prepared.generation.prompt, prepared_request.served
    if isinstance(prompt, TextPrompt):
        return "".join([segment.text for segment in prompt.segments])
    if "detokenize" not in prepared_request.capabilities.tasks:
        raise UnsupportedParameter(
            f"The {served.engine.name} engine cannot detokenize the prompt: send it as text.", param="echo"
        )
    tokens = getattr(prompt, "tokens", ())
    return await served.engine.detokenize(served.model, tokens)
