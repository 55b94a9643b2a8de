"""Checks output of chat completions and completions against the openai package: strict types and no unknown fields.

`DEVIATIONS` lists every field that the server sends beyond OpenAI's types, with the reason.
"""

import json
from collections.abc import Iterable
from typing import Any

from openai.lib.streaming.chat._completions import ChatCompletionStreamState
from openai.types import Completion
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from pydantic import BaseModel

from tests.oracles.unknown_fields import find_unknown_fields

_PASSTHROUGH_FIELDS = {"prompt_token_ids", "prompt_logprobs", "kv_transfer_params"}
# Fields that the server sends although OpenAI's class of this name does not have them.
DEVIATIONS: dict[str, set[str]] = {
    # vLLM's extensions, which its clients read
    "ChatCompletion": _PASSTHROUGH_FIELDS,
    "ChatCompletionChunk": _PASSTHROUGH_FIELDS,
    "Choice": {"stop_reason", "token_ids"},
    "CompletionChoice": {"stop_reason", "token_ids", *_PASSTHROUGH_FIELDS},
    "Completion": {"kv_transfer_params", "service_tier"},
    # reasoning, under both names in use
    "ChatCompletionMessage": {"reasoning", "reasoning_content"},
    "ChoiceDelta": {"reasoning", "reasoning_content"},
    # OpenAI streams it, but its Python types omit it
    "ChoiceDeltaToolCall": {"custom"},
}


def check_chat(body: dict[str, Any]) -> None:
    """Fail unless `body` is a valid chat.completion with no further fields than DEVIATIONS."""
    _check(ChatCompletion, body)


def check_chunk(chunk: dict[str, Any]) -> None:
    _check(ChatCompletionChunk, _remove_custom_type(chunk))


def check_completion(body: dict[str, Any]) -> None:
    """Check a complete completion, or a chunk, whose finish_reason may be missing."""
    adjusted = json.loads(json.dumps(body))
    for choice in adjusted["choices"]:
        choice["finish_reason"] = choice["finish_reason"] or "stop"
        if (logprobs := choice["logprobs"]) is not None:  # the first token of an echoed prompt has no logprob
            logprobs["token_logprobs"] = [0.0 if each is None else each for each in logprobs["token_logprobs"]]
            logprobs["top_logprobs"] = [each or {} for each in logprobs["top_logprobs"] or ()]
    _check(Completion, adjusted)


def accumulate(chunks: Iterable[dict[str, Any]]) -> ChatCompletion:
    """Return the completion that the SDK's stream helper accumulates, also from a stream that was cut off."""
    state: ChatCompletionStreamState[None] = ChatCompletionStreamState()
    for chunk in chunks:
        state.handle_chunk(ChatCompletionChunk.model_validate(chunk))
    return state.current_completion_snapshot


def parse_chunks(body: bytes) -> list[dict[str, Any]]:
    """Parse the chunks of a stream that ended with [DONE]; comments are skipped."""
    *frames, done, trailer = body.decode().split("\n\n")
    assert (done, trailer) == ("data: [DONE]", "")
    data_frames = [frame for frame in frames if not frame.startswith(":")]
    assert all(frame.startswith("data: ") and "\n" not in frame for frame in data_frames)
    return [json.loads(frame.removeprefix("data: ")) for frame in data_frames]


def _check(cls: type[BaseModel], value: dict[str, Any]) -> None:
    model = cls.model_validate_json(json.dumps(value), strict=True)
    unknown = sorted(find_unknown_fields(model, cls.__name__, DEVIATIONS))
    assert not unknown, f"fields that the openai package does not know: {unknown}"


def _remove_custom_type(chunk: dict[str, Any]) -> dict[str, Any]:
    """Remove the type of custom tool calls: the package's chunk types allow only `function`."""
    adjusted: dict[str, Any] = json.loads(json.dumps(chunk))
    for choice in adjusted["choices"]:
        for call in choice["delta"].get("tool_calls") or ():
            if call.get("type") == "custom":
                del call["type"]
    return adjusted
