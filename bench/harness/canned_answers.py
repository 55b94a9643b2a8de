"""What the fake engine says, made beforehand: chat completions as vLLM sends them, Responses as OpenAI does."""

from typing import Any

import msgspec
from msgspec import Struct

TOKENS = 400  # of each stream: enough that the events around them weigh little
BRIEF, PACED = 8, 150
JOINED = 8
PACE_SECONDS, HELD_SECONDS, PAUSE_SECONDS = 0.02, 60.0, 0.002
CHAT, RESPONSES = b"/v1/chat/completions", b"/v1/responses"
MODELS = ("one", "joined", "paced", "held", "first", "brief")

_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
_AT = 1763190000
_MESSAGE = "msg_68a1b2c3d4e5f60718293a4b5c6d7e8f"
_PACES = {"paced": PACE_SECONDS, "held": HELD_SECONDS, "first": PAUSE_SECONDS}

Json = dict[str, Any]
_encode = msgspec.json.encode


class Answer(Struct, frozen=True, kw_only=True):
    """A stream: `head`, the writes, `end`. And all of it at once: `whole`."""

    head: bytes
    writes: list[bytes]
    end: bytes
    pace: float  # seconds between two writes; 0: as fast as they are taken
    stamp: tuple[bytes, bytes] | None  # around the time that a token says, if that is what it says
    whole: bytes


def answers() -> dict[bytes, dict[bytes, Answer]]:
    """By the path and the model that are asked for."""
    return {
        CHAT: {model.encode(): _chat(model) for model in MODELS},
        RESPONSES: {model.encode(): _responses(model) for model in MODELS},
    }


def models_reply() -> bytes:
    cards = [{"id": model, "object": "model", "created": _AT, "owned_by": "bench"} for model in MODELS]
    return _encode({"object": "list", "data": cards})


def json_reply(body: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def words(model: str) -> list[str]:
    """Varied: there are servers that stop a stream of equal tokens."""
    count = {"paced": PACED, "first": BRIEF, "brief": BRIEF}.get(model, TOKENS)
    return [f" t{number * 7919 % 1000}" for number in range(count)]


def _answer(model: str, first: bytes, tokens: list[bytes], last: bytes, whole: bytes) -> Answer:
    """`tokens` are the events of the tokens, `first` and `last` what stands around them."""
    before, _, after = tokens[0].partition(words(model)[0].encode())
    return Answer(
        head=_HEAD + chunk(first),
        writes=_writes(model, [chunk(token) for token in tokens]),
        end=chunk(last) + b"0\r\n\r\n",
        pace=_PACES.get(model, 0.0),
        stamp=(before, after) if model == "paced" else None,
        whole=json_reply(whole),
    )


def _writes(model: str, events: list[bytes]) -> list[bytes]:
    if model == "first":
        return [events[0], b"".join(events[1:])]
    step = {"joined": JOINED, "brief": BRIEF}.get(model, 1)
    return [b"".join(events[at : at + step]) for at in range(0, len(events), step)]


def _chat(model: str) -> Answer:
    base = {"id": "chatcmpl-8f1c2d3e4f5a6b7c", "object": "chat.completion.chunk", "created": _AT, "model": model}

    def event(delta: Json, finish: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish, "token_ids": None}
        return b"data: " + _encode({**base, "choices": [choice]}) + b"\n\n"

    said = words(model)
    usage = {"prompt_tokens": 3, "total_tokens": 3 + len(said), "completion_tokens": len(said)}
    counted = b"data: " + _encode({**base, "choices": [], "usage": usage}) + b"\n\n"
    message = {"role": "assistant", "content": "".join(said), "tool_calls": []}
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": "stop", "stop_reason": None}
    whole = _encode({**base, "object": "chat.completion", "choices": [choice], "usage": usage})
    first = event({"role": "assistant", "content": ""})
    last = event({"content": ""}, "stop") + counted + b"data: [DONE]\n\n"
    return _answer(model, first, [event({"content": word}) for word in said], last, whole)


def _responses(model: str) -> Answer:
    number = iter(range(1 << 30))

    def event(kind: str, **fields: Any) -> bytes:
        body = {"type": f"response.{kind}", "sequence_number": next(number), **fields}
        return f"event: {body['type']}\ndata: ".encode() + _encode(body) + b"\n\n"

    said = words(model)
    text = "".join(said)
    opening, ended = _response(model, "in_progress", None, 0), _response(model, "completed", text, len(said))
    place = {"item_id": _MESSAGE, "output_index": 0, "content_index": 0}
    item = _message("in_progress", None)
    first = b"".join(
        [
            event("created", response=opening),
            event("in_progress", response=opening),
            event("output_item.added", output_index=0, item=item),
            event("content_part.added", **place, part=_part("")),
        ]
    )
    tokens = [event("output_text.delta", **place, delta=word, logprobs=[]) for word in said]
    last = b"".join(
        [
            event("output_text.done", **place, text=text, logprobs=[]),
            event("content_part.done", **place, part=_part(text)),
            event("output_item.done", output_index=0, item=_message("completed", text)),
            event("completed", response=ended),
        ]
    )
    return _answer(model, first, tokens, last, _encode(ended))


def _part(text: str) -> Json:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _message(status: str, text: str | None) -> Json:
    content = [] if text is None else [_part(text)]
    return {"id": _MESSAGE, "type": "message", "status": status, "role": "assistant", "content": content}


def _response(model: str, status: str, text: str | None, tokens: int) -> Json:
    usage = {
        "input_tokens": 3,
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens": tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 3 + tokens,
    }
    return {
        "id": "resp_68a1b2c3d4e5f60718293a4b5c6d7e8f",
        "object": "response",
        "created_at": _AT,
        "status": status,
        "background": False,
        "error": None,
        "incomplete_details": None,
        "instructions": None,
        "max_output_tokens": None,
        "model": model,
        "output": [] if text is None else [_message("completed", text)],
        "parallel_tool_calls": True,
        "previous_response_id": None,
        "reasoning": {"effort": None, "summary": None},
        "service_tier": "default",
        "store": False,
        "temperature": 1.0,
        "text": {"format": {"type": "text"}},
        "tool_choice": "auto",
        "tools": [],
        "top_p": 1.0,
        "truncation": "disabled",
        "usage": usage if text is not None else None,
        "metadata": {},
    }
