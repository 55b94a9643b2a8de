"""What a Response becomes: by an event (`apply`), by all of a stream (`fold`), and at its end (`closing`).

The emitter lets its output grow as `apply` does, without another Response for each item. Deltas change nothing here:
the `done` events carry what they add up to. A Response handed out in an event is never changed afterwards, so an event
can be encoded at any later time.

The last events of a response, by the way it ended.

The Response as it stands when a request is accepted: every field that was sent, and the defaults.

What a client sent beyond OpenAI's fields is echoed only when it was sent.
"""

from collections.abc import Iterable
from typing import Literal

from msgspec import UNSET, Struct
from msgspec.structs import replace

from antiphon.core.emitter.event_log import Ended, Fault
from antiphon.core.emitter.response_views import output_messages
from antiphon.errors import AntiphonError
from antiphon.protocol.types import events as ev
from antiphon.protocol.types.items import OutputItem
from antiphon.protocol.types.request import CreateResponse
from antiphon.protocol.types.response import IncompleteDetails, Response, ResponseError


class Ending(Struct, frozen=True, kw_only=True):
    """How a response ended: by itself, cut short, by an error, or by someone's wish."""

    status: Literal["completed", "incomplete", "failed", "cancelled"]
    reason: Literal["max_output_tokens", "content_filter", "steered"] | None = None
    error: AntiphonError | None = None
    silent: bool = False  # nothing was to be said


def apply(response: Response, event: ev.Event) -> Response:
    output = [*response.output]
    if type(event) is ev.OutputItemAdded:
        output.append(event.item)
    elif type(event) is ev.OutputItemDone:
        output[event.output_index] = event.item
    else:  # the others that change a Response carry all of it
        return event.response if isinstance(event, ev.ResponseEvent) else response
    return replace(response, output=output)


def fold(events: Iterable[ev.Event]) -> Response:
    """The Response that a stream amounts to; it starts with `response.created`."""
    stream = iter(events)
    first = next(stream)
    assert isinstance(first, ev.Created)
    response = first.response
    for event in stream:
        response = apply(response, event)
    return response


def closing(response: Response, output: list[OutputItem], ended: Ended) -> Response:
    """`output`: all of it. It is the Response's from now on."""
    return replace(
        response,
        output=output,
        status=ended.status,
        completed_at=ended.at if ended.status == "completed" else None,
        incomplete_details=IncompleteDetails(reason=ended.reason) if ended.reason else None,
        error=_error(ended.fault) if ended.fault else None,
        usage=ended.usage,
        output_messages=UNSET if response.input_messages is UNSET else output_messages(output),
    )


def _error(fault: Fault) -> ResponseError:
    return ResponseError(code=fault.code or fault.type, message=fault.message, type=fault.type)


def terminal(response: Response, ended: Ended) -> list[ev.Event]:
    if ended.status == "completed":
        return [ev.Completed(response=response)]
    if ended.fault is not None:
        return [_error_event(ended.fault), ev.Failed(response=response)]
    # The SDKs know no `response.cancelled`, and Codex tries a failed one again.
    return [ev.Incomplete(response=response)]


def fault_of(error: AntiphonError) -> Fault:
    return Fault(
        type=error.type, code=error.code, message=error.message, param=error.param, retry_after=error.retry_after
    )


def _error_event(fault: Fault) -> ev.Error:
    body = ev.ErrorBody(type=fault.type, code=fault.code, message=fault.message, param=fault.param)
    return ev.Error(
        code=fault.code,
        message=fault.message,
        param=fault.param,
        error=body,
        retry_after=UNSET if fault.retry_after is None else fault.retry_after,
    )


# What a Response says of its request, word for word; `store` is not here, since it says what was really done.
ECHOED = frozenset({
    "instructions", "metadata", "parallel_tool_calls", "tool_choice", "tools", "temperature", "top_p",
    "presence_penalty", "frequency_penalty", "top_logprobs", "truncation", "text", "reasoning", "max_output_tokens",
    "max_tool_calls", "safety_identifier", "prompt_cache_key", "prompt_cache_retention", "user", "background",
    "previous_response_id", "conversation", "prompt",
    # Beyond OpenAI's fields.
    "top_k", "min_p", "repetition_penalty", "stop", "include_stop_str_in_output", "seed", "ignore_eos", "n", "best_of",
    "length_penalty", "skip_special_tokens", "chat_template_kwargs", "logprobs", "num_assistant_tokens",
    "assistant_confidence_threshold", "max_ngram_size", "moderation", "image",
    "access_programs", "context_management",
})  # fmt: skip
_CACHE_OPTIONS = {"mode": "implicit", "ttl": "30m"}  # all that OpenAI's types have here, and they want it said


def opening(
    request: CreateResponse, sent: frozenset[str], response_id: str, model: str, created_at: int, *, store: bool
) -> Response:
    """`sent` are the names of the fields that the client sent; the others have the Response's own defaults.

    `store` says whether the response is really kept.
    """
    response = Response(id=response_id, created_at=created_at, model=model, store=store)
    for name in ECHOED & sent:
        setattr(response, name, getattr(request, name))
    if "prompt_cache_options" in sent:
        given = request.prompt_cache_options or {}
        response.prompt_cache_options = {name: given.get(name, usual) for name, usual in _CACHE_OPTIONS.items()}
    response.service_tier = request.service_tier or "default"
    if response.background:
        response.status = "queued"
    return response
