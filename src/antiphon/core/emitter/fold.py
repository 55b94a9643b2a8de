"""States of a Response: at the start (`open_response`) and at the end (`close_response`).

A Response in an emitted event is never modified, so events can be encoded later.

The opening Response has every field that was sent, and defaults for the others. Fields that are not part of OpenAI's
API are echoed only if they were sent.
"""

from typing import Literal

import msgspec
from msgspec import UNSET, Raw, Struct
from msgspec.structs import replace

from antiphon.core.emitter.event_log import LoggedError, RunEnded
from antiphon.core.emitter.response_views import output_messages
from antiphon.errors import AntiphonError
from antiphon.protocol.types import events as ev
from antiphon.protocol.types.items import OutputItem
from antiphon.protocol.types.request import CreateResponse
from antiphon.protocol.types.response import IncompleteDetails, Response, ResponseError, ResponseModeration
from antiphon.protocol.types.shared_list import derive


class ResponseEnding(Struct, frozen=True, kw_only=True):
    """End of a response: completed, truncated, failed or cancelled."""

    status: Literal["completed", "incomplete", "failed", "cancelled"]
    reason: Literal["max_output_tokens", "content_filter", "steered"] | None = None
    error: AntiphonError | None = None
    allow_empty: bool = False  # a response without output is valid
    moderation: ResponseModeration | None = None


def close_response(response: Response, output: list[OutputItem], ended: RunEnded) -> Response:
    """Return the final Response. `output` is the complete output and is owned by the Response from now on."""
    fault = ended.fault
    return replace(
        response,
        output=output,
        status=ended.status,
        completed_at=ended.at if ended.status == "completed" else None,
        incomplete_details=IncompleteDetails(reason=ended.reason) if ended.reason else None,
        error=ResponseError(code=fault.code or fault.type, message=fault.message, type=fault.type) if fault else None,
        usage=ended.usage,
        moderation=ended.moderation or UNSET,
        output_messages=UNSET if response.input_messages is UNSET else output_messages(output),
    )


def terminal_events(response: Response, ended: RunEnded) -> list[ev.Event]:
    """Return the last events of a response, depending on how it ended."""
    if ended.status == "completed":
        return [ev.Completed(response=response)]
    if ended.fault is not None:
        return [error_event(ended.fault), ev.Failed(response=response)]
    # The OpenAI SDKs have no `response.cancelled` event, and Codex retries a failed response.
    return [ev.Incomplete(response=response)]


def to_logged_error(error: AntiphonError) -> LoggedError:
    return LoggedError(
        type=error.type, code=error.code, message=error.message, param=error.param, retry_after=error.retry_after
    )


def error_event(fault: LoggedError) -> ev.Error:
    body = ev.ErrorBody(type=fault.type, code=fault.code, message=fault.message, param=fault.param)
    return ev.Error(
        code=fault.code,
        message=fault.message,
        param=fault.param,
        error=body,
        retry_after=UNSET if fault.retry_after is None else fault.retry_after,
    )


# Request fields that a Response repeats unchanged. `store` is not one of them: it reports whether the response is
# stored.
ECHOED_FIELDS = frozenset({
    "instructions", "metadata", "parallel_tool_calls", "tool_choice", "tools", "temperature", "top_p",
    "presence_penalty", "frequency_penalty", "top_logprobs", "truncation", "text", "reasoning", "max_output_tokens",
    "max_tool_calls", "safety_identifier", "prompt_cache_key", "prompt_cache_retention", "user", "background",
    "previous_response_id", "conversation", "prompt",
    # Not part of OpenAI's API.
    "top_k", "min_p", "repetition_penalty", "stop", "include_stop_str_in_output", "seed", "ignore_eos", "n", "best_of",
    "length_penalty", "skip_special_tokens", "chat_template_kwargs", "logprobs", "num_assistant_tokens",
    "assistant_confidence_threshold", "max_ngram_size", "image",
    "access_programs", "context_management",
})  # fmt: skip
_CACHE_OPTIONS = {"mode": "implicit", "ttl": "30m"}  # all fields of OpenAI's type, which requires them


def open_response(
    request: CreateResponse, sent: frozenset[str], response_id: str, model: str, created_at: int, *, store: bool
) -> Response:
    """Return the Response of an accepted request.

    `sent` are the names of the fields that the client sent; other fields have the Response's defaults. `store` is
    whether the response is actually stored.
    """
    response = Response(id=response_id, created_at=created_at, model=model, store=store)
    for name in ECHOED_FIELDS & sent:
        setattr(response, name, getattr(request, name))
    if request.tools:
        response.tools = derive(request.tools, "json", lambda: Raw(msgspec.json.encode(request.tools)))
    if "prompt_cache_options" in sent:
        options = request.prompt_cache_options or {}
        response.prompt_cache_options = {name: options.get(name, default) for name, default in _CACHE_OPTIONS.items()}
    response.service_tier = request.service_tier or "default"
    if response.background:
        response.status = "queued"
    return response
