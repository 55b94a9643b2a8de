"""Chat completions, independent of the transport: planned like any request and answered by a `CompletionRun`.

Errors of a request are raised before the run is returned, under the field names of this API.
"""

from functools import partial
from time import time

from antiphon.core.dialects.chat_emitter import ChatEmitter, ChatOutputOptions
from antiphon.core.dialects.chat_request import ChatRequest
from antiphon.core.dialects.dialect import CompletionHeader
from antiphon.errors import AntiphonError, UnsupportedParameter
from antiphon.ids import new_dashed_id, new_id
from antiphon.service.access.service_tiers import tier_to_report
from antiphon.service.planning.apply_extensions import apply_extensions
from antiphon.service.planning.planner import Planner
from antiphon.service.prompting.prepared_request import PreparedRequest, repeat_request
from antiphon.service.runs.completion_runs import AcceptedCompletion, CompletionRuns

_CONTINUOUS_USAGE = "stream_options.continuous_usage_stats"


class ChatCompletions:
    def __init__(self, planner: Planner, runs: CompletionRuns) -> None:
        self._planner = planner
        self._runs = runs

    async def create(self, tenant: str, parsed: ChatRequest) -> AcceptedCompletion:
        try:
            planned = await self._planner.plan(tenant, parsed.decoded)
            prepared_request = apply_extensions(planned, parsed.request, parsed.output_format, tenant)
            return await self._start_run(prepared_request, parsed)
        except AntiphonError as error:
            raise parsed.names.translate_error(error) from None

    async def _start_run(self, prepared_request: PreparedRequest, parsed: ChatRequest) -> AcceptedCompletion:
        request = parsed.request
        head = CompletionHeader(
            id=new_dashed_id("chatcmpl"),
            created=int(time()),
            model=prepared_request.served.name,
            service_tier=tier_to_report(request.service_tier, prepared_request.decoded.request.service_tier),
        )
        emitter = ChatEmitter(head, await _make_options(prepared_request, parsed), partial(new_id, "call"))
        calls = repeat_request(prepared_request, request.n or 1)
        return self._runs.open(calls, emitter, parsed.names.translate_error)


async def _make_options(prepared_request: PreparedRequest, parsed: ChatRequest) -> ChatOutputOptions:
    request, options = parsed.request, parsed.request.stream_options
    stream_options = options if request.stream else None
    return ChatOutputOptions(
        choices=request.n or 1,
        include_usage=not request.stream or (stream_options is not None and stream_options.include_usage),
        running_usage_base=await count_prompt_tokens(prepared_request)
        if stream_options is not None and stream_options.continuous_usage_stats
        else None,
        include_reasoning=request.include_reasoning,
        legacy_function_call=request.functions is not None,
        include_obfuscation=stream_options is not None and stream_options.include_obfuscation,
    )


async def count_prompt_tokens(prepared_request: PreparedRequest) -> int:
    """Count the prompt's tokens before the engine reports them, for continuous usage statistics."""
    if (tokens := prepared_request.prepared.tokens) is not None:
        return tokens
    served = prepared_request.served
    if not prepared_request.capabilities.can_count_tokens:
        raise UnsupportedParameter(
            f"The {served.engine.name} engine reports prompt tokens only at the end of a stream.",
            param=_CONTINUOUS_USAGE,
        )
    return await served.engine.count_tokens(served.model, prepared_request.prepared.generation.prompt)
