"""Prebuilt answers of the fake engine: chat completions in the format of vLLM, Responses in the format of OpenAI."""

from typing import Any

import msgspec
from msgspec import Struct

TOKENS = {"brief": 8, "short": 64, "medium": 128, "long": 256, "paced": 150, "held": 2}  # by model, per answer
CHAT, RESPONSES = b"/v1/chat/completions", b"/v1/responses"
RESPONSE_ID = b"68a1b2c3d4e5f60718293a4b5c6d7e8f"  # of the response and of its message; the fake engine replaces it

_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
_CREATED_AT = 1763190000
_MESSAGE_ID = f"msg_{RESPONSE_ID.decode()}"
_PACES = {"paced": 0.02, "held": 60.0}  # seconds

Json = dict[str, Any]
_encode = msgspec.json.encode


class CannedAnswer(Struct, frozen=True, kw_only=True):
    """A stream (`head`, the writes, `end`), and the answer without streaming (`json_reply`)."""

    head: bytes
    writes: list[bytes]
    end: bytes
    pace: float  # seconds between two writes; 0: as fast as the client reads
    stamp: tuple[bytes, bytes] | None  # bytes before and after the send time, if the token contains it
    json_reply: bytes


def make_answers() -> dict[bytes, dict[bytes, CannedAnswer]]:
    """Return the answers by path and model."""
    return {
        CHAT: {model.encode(): _make_chat(model) for model in TOKENS},
        RESPONSES: {model.encode(): _make_responses(model) for model in TOKENS},
    }


def make_models_reply() -> bytes:
    cards = [{"id": model, "object": "model", "created": _CREATED_AT, "owned_by": "bench"} for model in TOKENS]
    return _encode({"object": "list", "data": cards})


def make_json_reply(body: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)


def make_chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def make_tokens(model: str) -> list[str]:
    """Return varied tokens, since some servers stop a stream of equal tokens."""
    return [f" t{number * 7919 % 1000}" for number in range(TOKENS[model])]


def _make_answer(model: str, first: bytes, tokens: list[bytes], last: bytes, json_body: bytes) -> CannedAnswer:
    """Build an answer from the events of the tokens, and the events before (`first`) and after them (`last`)."""
    before, _, after = tokens[0].partition(make_tokens(model)[0].encode())
    return CannedAnswer(
        head=_HEAD + make_chunk(first),
        writes=[make_chunk(token) for token in tokens],
        end=make_chunk(last) + b"0\r\n\r\n",
        pace=_PACES.get(model, 0.0),
        stamp=(before, after) if model == "paced" else None,
        json_reply=make_json_reply(json_body),
    )


def _make_chat(model: str) -> CannedAnswer:
    base = {
        "id": "chatcmpl-8f1c2d3e4f5a6b7c",
        "object": "chat.completion.chunk",
        "created": _CREATED_AT,
        "model": model,
    }

    def event(delta: Json, finish: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish, "token_ids": None}
        return b"data: " + _encode({**base, "choices": [choice]}) + b"\n\n"

    texts = make_tokens(model)
    usage = {"prompt_tokens": 3, "total_tokens": 3 + len(texts), "completion_tokens": len(texts)}
    usage_event = b"data: " + _encode({**base, "choices": [], "usage": usage}) + b"\n\n"
    message = {"role": "assistant", "content": "".join(texts), "tool_calls": []}
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": "stop", "stop_reason": None}
    json_body = _encode({**base, "object": "chat.completion", "choices": [choice], "usage": usage})
    first = event({"role": "assistant", "content": ""})
    last = event({"content": ""}, "stop") + usage_event + b"data: [DONE]\n\n"
    return _make_answer(model, first, [event({"content": text}) for text in texts], last, json_body)


def _make_responses(model: str) -> CannedAnswer:
    number = iter(range(1 << 30))

    def event(kind: str, **fields: Any) -> bytes:
        body = {"type": f"response.{kind}", "sequence_number": next(number), **fields}
        return f"event: {body['type']}\ndata: ".encode() + _encode(body) + b"\n\n"

    texts = make_tokens(model)
    text = "".join(texts)
    started, completed = _response(model, "in_progress", None, 0), _response(model, "completed", text, len(texts))
    position = {"item_id": _MESSAGE_ID, "output_index": 0, "content_index": 0}
    item = _message("in_progress", None)
    first = b"".join(
        [
            event("created", response=started),
            event("in_progress", response=started),
            event("output_item.added", output_index=0, item=item),
            event("content_part.added", **position, part=_part("")),
        ]
    )
    tokens = [event("output_text.delta", **position, delta=delta, logprobs=[]) for delta in texts]
    last = b"".join(
        [
            event("output_text.done", **position, text=text, logprobs=[]),
            event("content_part.done", **position, part=_part(text)),
            event("output_item.done", output_index=0, item=_message("completed", text)),
            event("completed", response=completed),
        ]
    )
    return _make_answer(model, first, tokens, last, _encode(completed))


def _part(text: str) -> Json:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _message(status: str, text: str | None) -> Json:
    content = [] if text is None else [_part(text)]
    return {"id": _MESSAGE_ID, "type": "message", "status": status, "role": "assistant", "content": content}


def _response(model: str, status: str, text: str | None, tokens: int) -> Json:
    usage = {
        "input_tokens": 3, "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens": tokens, "output_tokens_details": {"reasoning_tokens": 0}, "total_tokens": 3 + tokens,
    }  # fmt: skip
    return {
        "id": f"resp_{RESPONSE_ID.decode()}", "object": "response", "created_at": _CREATED_AT, "status": status,
        "background": False, "error": None, "incomplete_details": None, "instructions": None,
        "max_output_tokens": None, "model": model, "output": [] if text is None else [_message("completed", text)],
        "parallel_tool_calls": True, "previous_response_id": None, "reasoning": {"effort": None, "summary": None},
        "service_tier": "default", "store": False, "temperature": 1.0, "text": {"format": {"type": "text"}},
        "tool_choice": "auto", "tools": [], "top_p": 1.0, "truncation": "disabled",
        "usage": usage if text is not None else None, "metadata": {},
    }  # fmt: skip
