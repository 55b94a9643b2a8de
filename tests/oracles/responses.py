"""The openai package as the judge of what we send: strict types, invented fields, and its stream accumulators.

`DEVIATIONS` is the whole list of what we send beyond OpenAI's types, each with its reason.
"""

import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, get_args

from openai._models import construct_type
from openai._types import omit
from openai.lib.responses_websocket._accumulator import ResponsesWebSocketAccumulator
from openai.lib.streaming.responses._responses import ResponseStreamState
from openai.types import CreateEmbeddingResponse
from openai.types.audio.transcription_stream_event import TranscriptionStreamEvent
from openai.types.conversations import Conversation, ConversationDeletedResource
from openai.types.conversations.conversation_item_list import ConversationItemList
from openai.types.responses import CompactedResponse, Response, ResponseStreamEvent
from openai.types.responses.response_error import ResponseError
from openai.types.responses.response_item_list import ResponseItemList
from openai.types.responses.response_steer_accepted_event import ResponseSteerAcceptedEvent
from openai.types.responses.response_steer_failed_event import ResponseSteerFailedEvent
from openai.types.responses.response_steer_pending_event import ResponseSteerPendingEvent
from openai.types.responses.responses_server_event import ResponsesServerEvent
from pydantic import BaseModel, ValidationError

from tests.oracles.unknown_fields import classes, invented

_EXTENSIONS = {
    "top_k", "min_p", "repetition_penalty", "stop", "include_stop_str_in_output", "seed", "ignore_eos", "n", "best_of",
    "length_penalty", "skip_special_tokens", "chat_template_kwargs", "logprobs", "num_assistant_tokens",
    "assistant_confidence_threshold", "max_ngram_size", "context_management",
}  # fmt: skip

# Fields that OpenAI's class of this name does not have, and that we send all the same.
DEVIATIONS: dict[str, set[str]] = {
    # required by Open Responses; extensions are echoed when they were sent; messages are for who asks for them where
    # the operator allows that (--compat off)
    "Response": {"presence_penalty", "frequency_penalty", "store", "input_messages", "output_messages"} | _EXTENSIONS,
    # usage by turn
    "InputTokensDetails": {"input_tokens_per_turn", "cached_tokens_per_turn"},
    "OutputTokensDetails": {"tool_output_tokens", "output_tokens_per_turn", "tool_output_tokens_per_turn"},
    # flat for OpenAI's type, nested for Open Responses and for SDKs that raise on `error`
    "ResponseErrorEvent": {"error", "retry_after"},
    # the same, on a WebSocket
    "ResponseWsError": {"code", "message", "param", "retry_after"},
    # required by OpenAI's own OpenAPI document
    "ResponseFunctionCallArgumentsDoneEvent": {"name"},
    # OpenAI sends them; its Python types leave them out
    "ResponseTextDeltaEvent": {"obfuscation"},
    "ResponseRefusalDeltaEvent": {"obfuscation"},
    "ResponseReasoningTextDeltaEvent": {"obfuscation"},
    "ResponseReasoningSummaryTextDeltaEvent": {"obfuscation"},
    "ResponseFunctionCallArgumentsDeltaEvent": {"obfuscation"},
    "ResponseCustomToolCallInputDeltaEvent": {"obfuscation"},
    "ResponseMcpCallArgumentsDeltaEvent": {"obfuscation"},
    "ResponseCodeInterpreterCallCodeDeltaEvent": {"obfuscation"},
    # vLLM's
    "CreateEmbeddingResponse": {"id", "created"},
    # the AI SDK wants to see that a custom call is completed
    "ResponseCustomToolCall": {"status"},
    # a client's own fields on items that it gets back
    "ResponseCustomToolCallOutputItem": {"name", "namespace"},
    # and the status, which OpenAI wants in the input of a response and does not have in a conversation
    "ResponseCustomToolCallOutput": {"status", "name", "namespace"},
    "LocalShellCallOutput": {"call_id"},
    "ResponseComputerToolCallOutputScreenshot": {"detail"},
    # for who includes web_search_call.results, for which the types have no place
    "ResponseFunctionWebSearch": {"results"},
    # Codex declares it, and its declaration is echoed
    "WebSearchTool": {"search_content_types"},
}
# Events that the types do not have. A keepalive is told by SDKs and Codex from everything else by its name.
UNTYPED_EVENTS = {"keepalive": {"type", "sequence_number"}}
# On a WebSocket; the second is sent only to those who ask for it.
UNTYPED_SOCKET_EVENTS = {**UNTYPED_EVENTS, "connection_expiring": {"type", "expires_at"}}
_KNOWN_ERROR_CODES = set(get_args(ResponseError.model_fields["code"].annotation))


def check_event(event: dict[str, Any]) -> None:
    """Fail unless `event` is what OpenAI's class for its type says, and nothing more than DEVIATIONS."""
    kind = event.get("type")
    if kind in UNTYPED_EVENTS:
        assert event.keys() == UNTYPED_EVENTS[kind], f"{kind} has the fields {sorted(event)}"
        return
    assert kind in _EVENT_CLASSES, f"{kind!r} is not an event of the openai package"
    _check(_EVENT_CLASSES[kind], event)


def check_socket_event(event: dict[str, Any]) -> None:
    """The same for an event on a WebSocket, which has a `stream_id` if its lane has a name."""
    kind = event.get("type")
    if kind in UNTYPED_SOCKET_EVENTS:
        known = UNTYPED_SOCKET_EVENTS[kind]
        assert event.keys() - {"stream_id"} == known, f"{kind} has the fields {sorted(event)}"
        return
    assert kind in _SOCKET_CLASSES, f"{kind!r} is not an event of the openai package"
    _check(_SOCKET_CLASSES[kind], event, _SOCKET_DEVIATIONS)


def check_transcript_event(event: dict[str, Any]) -> None:
    """The same for an event of what is heard in audio."""
    assert event.get("type") in _TRANSCRIPT_CLASSES, f"{event} is no event of the openai package"
    _check(_TRANSCRIPT_CLASSES[event["type"]], event)


def check_response(response: dict[str, Any]) -> None:
    """Fail unless `response` is a Response object, and nothing more than DEVIATIONS."""
    _check(Response, response)


def check_input_items(page: dict[str, Any]) -> None:
    """The same for a page of a response's input."""
    _check(ResponseItemList, page)


def check_conversation_items(page: dict[str, Any]) -> None:
    """The same for a page of a conversation's items."""
    _check(ConversationItemList, page)


def check_conversation_item(item: dict[str, Any]) -> None:
    check_conversation_items({"object": "list", "data": [item], "first_id": "", "last_id": "", "has_more": False})


def check_conversation(conversation: dict[str, Any]) -> None:
    """The same for a conversation, or the word that it is deleted."""
    _check(Conversation if conversation.get("object") == "conversation" else ConversationDeletedResource, conversation)


def check_embeddings(answer: dict[str, Any]) -> None:
    """The same for a list of embeddings that are written as numbers."""
    _check(CreateEmbeddingResponse, answer)


def check_compacted(compacted: dict[str, Any]) -> None:
    """The same for what /responses/compact gives.

    OpenAI documents that `output` begins with the user's messages, and its type for `output` knows none: they are held
    against the type that messages of an input have, all the rest against its own.
    """
    users = [item for item in compacted["output"] if item.get("role") == "user"]
    assert compacted["output"][: len(users)] == users, "the user's messages come first"
    check_input_items({"object": "list", "data": users, "first_id": "", "last_id": "", "has_more": False})
    _check(CompactedResponse, {**compacted, "output": compacted["output"][len(users) :]})


def accumulate(events: Iterable[dict[str, Any]]) -> Response:
    """What the SDK makes of a whole stream; both of its accumulators must take it, whatever way it ended.

    They raise on changed ids, duplicate indexes, content without its item or part, and unfinished items.
    """
    state: ResponseStreamState[None] = ResponseStreamState(input_tools=omit, text_format=omit)
    socket = ResponsesWebSocketAccumulator()
    for event in events:
        if event["type"] in ("keepalive", "error"):  # the SDK raises on an error before it accumulates
            continue
        typed: Any = construct_type(type_=ResponseStreamEvent, value=event)
        state.handle_event(typed)
        socket.add_event(typed)
    final = socket.get_final_response()
    if final.status == "completed":
        assert state._completed_response is not None, "the stream helper saw no response.completed"
    return final


def _check(cls: type[BaseModel], value: dict[str, Any], allowed: Mapping[str, Collection[str]] = DEVIATIONS) -> None:
    try:
        model = cls.model_validate_json(json.dumps(_without_own_codes(value)), strict=True)
    except ValidationError as error:
        told = "\n".join(_telling(error))
        raise AssertionError(f"{cls.__name__} refuses {json.dumps(value)[:2000]}\n{told}") from None
    unknown = sorted(invented(model, cls.__name__, allowed))
    assert not unknown, f"fields that the openai package does not know: {unknown}"


def _telling(error: ValidationError) -> Iterator[str]:
    """What is wrong, without the members of unions that were never meant."""
    details = error.errors(include_url=False)
    others = {
        detail["loc"][:-1] for detail in details if detail["type"] == "literal_error" and detail["loc"][-1] == "type"
    }
    for detail in details:
        loc = detail["loc"]
        if not any(loc[:length] in others for length in range(1, len(loc))):
            yield f"{'.'.join(map(str, loc))}: {detail['msg']}, got {str(detail['input'])[:100]}"


def _without_own_codes(value: dict[str, Any]) -> dict[str, Any]:
    """Codes of `response.error` beyond OpenAI's list are an allowed deviation."""
    if isinstance(value.get("response"), dict):
        return {**value, "response": _without_own_codes(value["response"])}
    error = value.get("error")
    if value.get("object") == "response" and isinstance(error, dict) and error.get("code") not in _KNOWN_ERROR_CODES:
        assert isinstance(error.get("code"), str), f"error.code is {error.get('code')!r}"
        return {**value, "error": {**error, "code": "server_error"}}
    return value


def _by_type(known: Iterable[type[BaseModel]]) -> dict[str, type[BaseModel]]:
    return {get_args(cls.model_fields["type"].annotation)[0]: cls for cls in known}


_STEERS = (ResponseSteerAcceptedEvent, ResponseSteerPendingEvent, ResponseSteerFailedEvent)
_EVENT_CLASSES = _by_type([*classes(ResponseStreamEvent), *_STEERS])
_SOCKET_CLASSES = _by_type(classes(ResponsesServerEvent))
_TRANSCRIPT_CLASSES = _by_type(classes(TranscriptionStreamEvent))
# The class of an event on a WebSocket is that of the event, and adds `stream_id`.
_SOCKET_DEVIATIONS = DEVIATIONS | {
    cls.__name__: DEVIATIONS[base.__name__]
    for cls in _SOCKET_CLASSES.values()
    for base in cls.__bases__
    if base.__name__ in DEVIATIONS
}
