"""The openai package as the judge of what chat completions and completions send: strict types and invented fields.

`DEVIATIONS` is the whole list of what we send beyond OpenAI's types, each with its reason.
"""

import json
from collections.abc import Iterable
from typing import Any

from openai.lib.streaming.chat._completions import ChatCompletionStreamState
from openai.types import Completion
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from pydantic import BaseModel

from tests.oracles.unknown_fields import invented

_PASSED_ON = {"prompt_token_ids", "prompt_logprobs", "kv_transfer_params"}
# Fields that OpenAI's class of this name does not have, and that we send all the same.
DEVIATIONS: dict[str, set[str]] = {
    # what vLLM's clients read
    "ChatCompletion": _PASSED_ON,
    "ChatCompletionChunk": _PASSED_ON,
    "Choice": {"stop_reason", "token_ids"},
    "CompletionChoice": {"stop_reason", "token_ids", *_PASSED_ON},
    "Completion": {"kv_transfer_params", "service_tier"},
    # thoughts, under both names that are in use
    "ChatCompletionMessage": {"reasoning", "reasoning_content"},
    "ChoiceDelta": {"reasoning", "reasoning_content"},
    # OpenAI streams them; its Python types leave them out
    "ChoiceDeltaToolCall": {"custom"},
}


def check_chat(body: dict[str, Any]) -> None:
    """Fail unless it is a chat.completion, and nothing more than DEVIATIONS."""
    _check(ChatCompletion, body)


def check_chunk(chunk: dict[str, Any]) -> None:
    _check(ChatCompletionChunk, _without_custom(chunk))


def check_completion(body: dict[str, Any]) -> None:
    """A whole one, or a chunk, whose finish_reason may be missing."""
    shown = json.loads(json.dumps(body))
    for choice in shown["choices"]:
        choice["finish_reason"] = choice["finish_reason"] or "stop"
        if (logprobs := choice["logprobs"]) is not None:  # the first token of a prompt that is echoed has none
            logprobs["token_logprobs"] = [0.0 if each is None else each for each in logprobs["token_logprobs"]]
            logprobs["top_logprobs"] = [each or {} for each in logprobs["top_logprobs"] or ()]
    _check(Completion, shown)


def accumulate(chunks: Iterable[dict[str, Any]]) -> ChatCompletion:
    """What the SDK's stream helper makes of a whole stream, also of one that was cut."""
    state: ChatCompletionStreamState[None] = ChatCompletionStreamState()
    for chunk in chunks:
        state.handle_chunk(ChatCompletionChunk.model_validate(chunk))
    return state.current_completion_snapshot


def frames_in(body: bytes) -> list[dict[str, Any]]:
    """Of a stream that ended as it should."""
    *frames, done, rest = body.decode().split("\n\n")
    assert (done, rest) == ("data: [DONE]", "")
    told = [frame for frame in frames if not frame.startswith(":")]
    assert all(frame.startswith("data: ") and "\n" not in frame for frame in told)
    return [json.loads(frame.removeprefix("data: ")) for frame in told]


def _check(cls: type[BaseModel], value: dict[str, Any]) -> None:
    model = cls.model_validate_json(json.dumps(value), strict=True)
    unknown = sorted(invented(model, cls.__name__, DEVIATIONS))
    assert not unknown, f"fields that the openai package does not know: {unknown}"


def _without_custom(chunk: dict[str, Any]) -> dict[str, Any]:
    """The types of chunks know no type of call but `function`."""
    shown: dict[str, Any] = json.loads(json.dumps(chunk))
    for choice in shown["choices"]:
        for call in choice["delta"].get("tool_calls") or ():
            if call.get("type") == "custom":
                del call["type"]
    return shown
