"""Checks server output against the openai package: strict types, no unknown fields, and its stream accumulators.

`DEVIATIONS` lists every field that the server sends beyond OpenAI's types, with the reason.
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

from tests.oracles.unknown_fields import find_unknown_fields, iter_model_classes

_EXTENSIONS = {
    "top_k", "min_p", "repetition_penalty", "stop", "include_stop_str_in_output", "seed", "ignore_eos", "n", "best_of",
    "length_penalty", "skip_special_tokens", "chat_template_kwargs", "logprobs", "num_assistant_tokens",
    "assistant_confidence_threshold", "max_ngram_size", "context_management",
}  # fmt: skip

# Fields that the server sends although OpenAI's class of this name does not have them.
DEVIATIONS: dict[str, set[str]] = {
    # penalties and store are required by Open Responses; extensions are echoed when they were sent; messages are
    # returned on request where the operator allows it (--compat off)
    # ignored_fields names what was sent and has no effect
    "Response": {
        "presence_penalty",
        "frequency_penalty",
        "store",
        "input_messages",
        "output_messages",
        "ignored_fields",
        *_EXTENSIONS,
    },
    # usage per turn
    "InputTokensDetails": {"input_tokens_per_turn", "cached_tokens_per_turn"},
    "OutputTokensDetails": {"tool_output_tokens", "output_tokens_per_turn", "tool_output_tokens_per_turn"},
    # flat for OpenAI's type, nested for Open Responses and for SDKs that raise on `error`
    "ResponseErrorEvent": {"error", "retry_after"},
    # flat and nested as above, on a WebSocket
    "ResponseWsError": {"code", "message", "param", "retry_after"},
    # required by OpenAI's own OpenAPI document
    "ResponseFunctionCallArgumentsDoneEvent": {"name"},
    # OpenAI sends these, but its Python types omit them
    "ImageGeneration": {"n"},
    "ResponseTextDeltaEvent": {"obfuscation"},
    "ResponseRefusalDeltaEvent": {"obfuscation"},
    "ResponseReasoningTextDeltaEvent": {"obfuscation"},
    "ResponseReasoningSummaryTextDeltaEvent": {"obfuscation"},
    "ResponseFunctionCallArgumentsDeltaEvent": {"obfuscation"},
    "ResponseCustomToolCallInputDeltaEvent": {"obfuscation"},
    "ResponseMcpCallArgumentsDeltaEvent": {"obfuscation"},
    "ResponseCodeInterpreterCallCodeDeltaEvent": {"obfuscation"},
    # vLLM's extensions
    "CreateEmbeddingResponse": {"id", "created"},
    # the AI SDK requires the status of a completed custom call
    "ResponseCustomToolCall": {"status"},
    # fields that clients set on items, returned to them
    "ResponseCustomToolCallOutputItem": {"name", "namespace"},
    # also the status, which OpenAI requires in the input of a response but not in a conversation
    "ResponseCustomToolCallOutput": {"status", "name", "namespace"},
    "LocalShellCallOutput": {"call_id"},
    "ResponseComputerToolCallOutputScreenshot": {"detail"},
    # sent when web_search_call.results is included; the types have no field for it
    "ResponseFunctionWebSearch": {"results"},
    # Codex declares it, and tool declarations are echoed
    "WebSearchTool": {"search_content_types"},
}
# Events without a type in the package. SDKs and Codex recognise a keepalive by its name.
UNTYPED_EVENTS = {"keepalive": {"type", "sequence_number"}}
# WebSocket only; `connection_expiring` is sent only on request.
UNTYPED_SOCKET_EVENTS = {**UNTYPED_EVENTS, "connection_expiring": {"type", "expires_at"}}
_KNOWN_ERROR_CODES = set(get_args(ResponseError.model_fields["code"].annotation))


def check_event(event: dict[str, Any]) -> None:
    """Fail unless `event` matches OpenAI's class for its type, with no further fields than DEVIATIONS."""
    kind = event.get("type")
    if kind in UNTYPED_EVENTS:
        assert event.keys() == UNTYPED_EVENTS[kind], f"{kind} has the fields {sorted(event)}"
        return
    assert kind in _EVENT_CLASSES, f"{kind!r} is not an event of the openai package"
    _check(_EVENT_CLASSES[kind], event)


def check_socket_event(event: dict[str, Any]) -> None:
    """Check an event on a WebSocket, which has a `stream_id` if its lane has a name."""
    kind = event.get("type")
    if kind in UNTYPED_SOCKET_EVENTS:
        fields = UNTYPED_SOCKET_EVENTS[kind]
        assert event.keys() - {"stream_id"} == fields, f"{kind} has the fields {sorted(event)}"
        return
    assert kind in _SOCKET_CLASSES, f"{kind!r} is not an event of the openai package"
    _check(_SOCKET_CLASSES[kind], event, _SOCKET_DEVIATIONS)


def check_transcript_event(event: dict[str, Any]) -> None:
    """Check an event of a transcription stream."""
    assert event.get("type") in _TRANSCRIPT_CLASSES, f"{event} is no event of the openai package"
    _check(_TRANSCRIPT_CLASSES[event["type"]], event)


def check_response(response: dict[str, Any]) -> None:
    """Fail unless `response` is a valid Response object with no further fields than DEVIATIONS."""
    _check(Response, response)


def check_input_items(page: dict[str, Any]) -> None:
    """Check a page of a response's input items."""
    _check(ResponseItemList, page)


def check_conversation_items(page: dict[str, Any]) -> None:
    """Check a page of a conversation's items."""
    _check(ConversationItemList, page)


def check_conversation_item(item: dict[str, Any]) -> None:
    check_conversation_items({"object": "list", "data": [item], "first_id": "", "last_id": "", "has_more": False})


def check_conversation(conversation: dict[str, Any]) -> None:
    """Check a conversation, or the reply to its deletion."""
    _check(Conversation if conversation.get("object") == "conversation" else ConversationDeletedResource, conversation)


def check_embeddings(body: dict[str, Any]) -> None:
    """Check a list of embeddings in float format."""
    _check(CreateEmbeddingResponse, body)


def check_compacted(compacted: dict[str, Any]) -> None:
    """Check the reply of /responses/compact.

    OpenAI documents that `output` begins with the user's messages, but its type for `output` does not allow them. They
    are checked against the type of input messages, all other items against their own type.
    """
    users = [item for item in compacted["output"] if item.get("role") == "user"]
    assert compacted["output"][: len(users)] == users, "the user's messages come first"
    check_input_items({"object": "list", "data": users, "first_id": "", "last_id": "", "has_more": False})
    _check(CompactedResponse, {**compacted, "output": compacted["output"][len(users) :]})


def accumulate(events: Iterable[dict[str, Any]]) -> Response:
    """Return the response that the SDK accumulates from a complete stream, whatever its terminal event.

    Both accumulators of the SDK must accept the stream. They raise on changed ids, duplicate indexes, content without
    its item or part, and unfinished items.
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
        model = cls.model_validate_json(json.dumps(_replace_own_codes(value)), strict=True)
    except ValidationError as error:
        description = "\n".join(_describe_errors(error))
        raise AssertionError(f"{cls.__name__} rejects {json.dumps(value)[:2000]}\n{description}") from None
    unknown = sorted(find_unknown_fields(model, cls.__name__, allowed))
    assert not unknown, f"fields that the openai package does not know: {unknown}"


def _describe_errors(error: ValidationError) -> Iterator[str]:
    """Describe each validation error, without those of unrelated union members."""
    details = error.errors(include_url=False)
    unrelated = {
        detail["loc"][:-1] for detail in details if detail["type"] == "literal_error" and detail["loc"][-1] == "type"
    }
    for detail in details:
        loc = detail["loc"]
        if not any(loc[:length] in unrelated for length in range(1, len(loc))):
            yield f"{'.'.join(map(str, loc))}: {detail['msg']}, got {str(detail['input'])[:100]}"


def _replace_own_codes(value: dict[str, Any]) -> dict[str, Any]:
    """Replace codes of `response.error` outside OpenAI's list, which are an allowed deviation."""
    if isinstance(value.get("response"), dict):
        return {**value, "response": _replace_own_codes(value["response"])}
    error = value.get("error")
    if value.get("object") == "response" and isinstance(error, dict) and error.get("code") not in _KNOWN_ERROR_CODES:
        assert isinstance(error.get("code"), str), f"error.code is {error.get('code')!r}"
        return {**value, "error": {**error, "code": "server_error"}}
    return value


def _index_by_type(models: Iterable[type[BaseModel]]) -> dict[str, type[BaseModel]]:
    return {get_args(cls.model_fields["type"].annotation)[0]: cls for cls in models}


_STEER_CLASSES = (ResponseSteerAcceptedEvent, ResponseSteerPendingEvent, ResponseSteerFailedEvent)
_EVENT_CLASSES = _index_by_type([*iter_model_classes(ResponseStreamEvent), *_STEER_CLASSES])
_SOCKET_CLASSES = _index_by_type(iter_model_classes(ResponsesServerEvent))
_TRANSCRIPT_CLASSES = _index_by_type(iter_model_classes(TranscriptionStreamEvent))
# The class of a WebSocket event derives from the class of the event and adds `stream_id`.
_SOCKET_DEVIATIONS = DEVIATIONS | {
    cls.__name__: DEVIATIONS[base.__name__]
    for cls in _SOCKET_CLASSES.values()
    for base in cls.__bases__
    if base.__name__ in DEVIATIONS
}
