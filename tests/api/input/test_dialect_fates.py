"""The fate of every field of chat completions, completions and messages: it changes the request to the engine or the
reply, is refused by name, or is listed in `x-antiphon-ignored`. None is dropped silently.

Those of the Responses API are in test_field_fates.py.
"""

import json
import re
from typing import Any, get_args

import pytest
from anthropic.types.message_create_params import MessageCreateParamsBase
from msgspec import Struct
from openai.types.chat.completion_create_params import CompletionCreateParamsBase as ChatParams
from openai.types.completion_create_params import CompletionCreateParamsBase as CompletionParams

from antiphon.engines.fake import FakeEngine, FakeSettings
from antiphon.engines.fake.tokens import Level
from antiphon.protocol.types.anthropic.request import CreateMessage
from antiphon.protocol.types.chat.request import CreateChat
from antiphon.protocol.types.completions import CreateCompletion
from tests.api.app import ApiServer, run_api

pytestmark = pytest.mark.anyio

Json = dict[str, Any]

SCHEMA: Json = {"type": "object", "properties": {}}
TOOL = {"type": "function", "function": {"name": "f", "parameters": SCHEMA}}
LONG = [{"role": "user", "content": "many words " * 40_000}, {"role": "user", "content": "short"}]
# Fields that need others to have an effect.
NEEDED: dict[str, Json] = {
    "tool_choice": {"tools": [TOOL]},
    "parallel_tool_calls": {"tools": [TOOL]},
    "function_call": {"functions": [TOOL["function"]]},
    "top_logprobs": {"logprobs": True},
    "stream_options": {"stream": True},
    "include_reasoning": {"reasoning_effort": "low"},
    "ignore_eos": {"max_tokens": 9},
    "truncation": {"messages": LONG},
}
LOGGED = {"user", "safety_identifier"}  # documented to be written to the log only
VALUES: Json = {
    **dict.fromkeys(("frequency_penalty", "presence_penalty", "temperature", "top_p", "length_penalty"), 0.5),
    **dict.fromkeys(("min_p", "assistant_confidence_threshold"), 0.1),
    **dict.fromkeys(("max_tokens", "max_completion_tokens", "top_k", "seed", "min_tokens", "priority"), 3),
    **dict.fromkeys(("num_assistant_tokens", "max_ngram_size", "thinking_token_budget", "truncate_prompt_tokens"), 3),
    **dict.fromkeys(("n", "best_of", "top_logprobs", "prompt_logprobs"), 2),
    **dict.fromkeys(("stream", "store", "ignore_eos", "use_beam_search", "echo", "return_token_ids"), True),
    **dict.fromkeys(("include_stop_str_in_output", "continue_final_message", "return_tokens_as_token_ids"), True),
    **dict.fromkeys(("parallel_tool_calls", "skip_special_tokens", "include_reasoning"), False),
    **dict.fromkeys(("add_special_tokens", "add_generation_prompt", "spaces_between_special_tokens"), False),
    **dict.fromkeys(("prompt_cache_key", "safety_identifier", "user", "cache_salt", "suffix", "prompt_embeds"), "x"),
    **dict.fromkeys(("request_id", "chat_template", "guided_grammar", "system", "container"), "x"),
    **{name: ["x"] for name in ("stop", "bad_words", "logits_processors", "stop_sequences")},
    **{name: {"a": 1} for name in ("mm_processor_kwargs", "kv_transfer_params", "repetition_detection", "audio")},
    **{name: [5] for name in ("stop_token_ids", "allowed_token_ids")},
    "chat_template_kwargs": {"enable_thinking": True},
    "documents": [{"a": "b"}],
    "function_call": "none",
    "functions": [TOOL["function"]],
    "guided_choice": ["a"],
    "guided_json": SCHEMA,
    "guided_regex": "a+",
    "logit_bias": {"3": 5},
    "logprobs": True,
    "mcp_servers": [{}],
    "metadata": {"user_id": "u"},
    "modalities": ["audio"],
    "moderation": {"model": "omni-moderation-latest"},
    "output_config": {"effort": "low"},
    "output_format": {"type": "json_schema", "schema": SCHEMA},
    "prediction": {"type": "content", "content": "x"},
    "prompt_cache_options": {"mode": "implicit"},
    "prompt_cache_retention": "24h",
    "reasoning_effort": "low",
    "repetition_penalty": 1.1,
    "response_format": {"type": "json_object"},
    "service_tier": "flex",
    "stream_options": {"include_usage": True},
    "structured_outputs": {"choice": ["a"]},
    "thinking": {"type": "enabled", "budget_tokens": 2000},
    "tool_choice": "none",
    "tools": [TOOL],
    "truncation": "auto",
    "verbosity": "low",
    "web_search_options": {},
}


class Api(Struct, frozen=True):
    path: str
    body_type: type[Struct]
    params: Any  # of the package
    base: Json
    values: Json = {}


MESSAGES = [{"role": "user", "content": "hi"}]
APIS = (
    Api("chat/completions", CreateChat, ChatParams, {"messages": MESSAGES}, {"metadata": {"a": "b"}}),
    Api("completions", CreateCompletion, CompletionParams, {"prompt": "hi"}, {"logprobs": 2}),
    Api(
        "messages",
        CreateMessage,
        MessageCreateParamsBase,
        {"messages": MESSAGES, "max_tokens": 50},
        {"tools": [{"name": "f", "input_schema": SCHEMA}], "tool_choice": {"type": "none"}, "service_tier": "auto"},
    ),
)
# The user is logged; `auto` is the operator's default tier.
UNCHANGED = {("messages", "metadata"), ("messages", "service_tier")}


def list_fields(api: Api) -> list[str]:
    return sorted({*api.body_type.__struct_fields__, *api.params.__annotations__} - {*api.base, "model"} | {"stream"})


async def send(server: ApiServer, path: str, body: Json) -> tuple[int, set[str], str]:
    """Return the status, the fields that the server refuses or ignores, and the reply with the request to the engine,
    both without ids.
    """
    before = [*server.engine.seen]  # kept, so that no id is used again
    answer = await server.post(path, {"model": "fake", **body})
    names = set((answer.header(b"x-antiphon-ignored") or b"").decode().split(", ")) - {""}
    if answer.status != 200:
        error = json.loads(answer.body)["error"]
        names |= {error.get("param") or ""} | set(re.findall(r"'(\w+)'|^(\w+)[.:]", error["message"])[0])
    seen = [request for request in server.engine.seen if id(request) not in map(id, before)]
    outcome = f"{seen} {answer.body.decode()}"
    return answer.status, names, re.sub(r"[0-9a-f]{24,}|\"created\":\d+", "", outcome)


@pytest.mark.parametrize("level", get_args(Level)[:2])
@pytest.mark.parametrize("api", APIS, ids=lambda api: api.path)
@pytest.mark.shows("A.19")
async def test_no_field_is_dropped_silently(api: Api, level: Level) -> None:
    async with run_api(engine=FakeEngine(FakeSettings(level=level)), moderation_model="fake") as server:
        values = {**VALUES, **api.values}
        for name in list_fields(api):
            known = name in api.body_type.__struct_fields__
            base = api.base | {key: values.get(key, one) for key, one in NEEDED.get(name, {}).items()}
            _, _, without = await send(server, api.path, base)
            status, names, outcome = await send(server, api.path, {**base, name: values[name] if known else "x"})
            told = any(told == name or told.startswith(f"{name}.") for told in names)
            assert told or status == 200, (name, outcome)
            assert told or outcome != without or name in LOGGED or (api.path, name) in UNCHANGED, name
