"""The API of each server that Antiphon supports as an HTTP engine: accepted fields, paths and probe replies.

Written independently, from the documentation of the servers and not from Antiphon's field table.
"""

from typing import Any, Literal

from msgspec import Struct

Json = dict[str, Any]
Shape = Literal["completions", "generate", "completion"]


class RawDialect(Struct, frozen=True, kw_only=True):
    """The raw completion endpoint. `sampling_params` are the fields within the object of that name, if there is one."""

    path: str
    shape: Shape = "completions"
    accepted_fields: frozenset[str]
    sampling_params: frozenset[str] = frozenset()


class Dialect(Struct, frozen=True, kw_only=True):
    """A server: its chat completion endpoint, its raw completion endpoint, and its replies to probes (`asides`)."""

    name: str
    base_path: str = "/v1"
    accepted_fields: frozenset[str]
    raw: RawDialect
    reasoning_field: str = "reasoning_content"
    asides: dict[str, Json] = {}  # path → reply to a GET or POST
    card: Json = {}
    counting: str = ""
    tokenizing: str = ""
    embedding: str = ""
    reports_cached: bool = True
    joins_calls: bool = False
    includes_stop: bool = False
    parses_tools: bool = True  # vLLM: whether it was started with a tool call parser
    sees: bool = True
    generates: bool = True


COMMON_FIELDS = frozenset({
    "model", "messages", "stream", "stream_options", "temperature", "top_p", "frequency_penalty", "presence_penalty",
    "stop", "seed", "response_format", "tools", "tool_choice", "parallel_tool_calls", "logprobs", "top_logprobs", "n",
    "reasoning_effort", "max_tokens", "max_completion_tokens",
})  # fmt: skip
EXTENDED_FIELDS = frozenset(
    {"top_k", "min_p", "repetition_penalty", "ignore_eos", "skip_special_tokens", "chat_template_kwargs"}
)
RAW_COMMON_FIELDS = frozenset({
    "model", "prompt", "stream", "stream_options", "temperature", "top_p", "frequency_penalty", "presence_penalty",
    "stop", "seed", "max_tokens",
})  # fmt: skip
RAW_EXTENDED_FIELDS = EXTENDED_FIELDS - {"chat_template_kwargs"}
BEAM_FIELDS = frozenset({"best_of", "length_penalty"})
SPECULATION_FIELDS = frozenset({"num_assistant_tokens", "assistant_confidence_threshold", "max_ngram_size"})
VLLM_FIELDS = frozenset({
    "include_stop_str_in_output", "cache_salt", "priority", "request_id", "use_beam_search", "length_penalty",
    "structured_outputs",
    "logit_bias", "min_tokens", "stop_token_ids", "prompt_logprobs", "return_token_ids", "kv_transfer_params",
})  # fmt: skip
SGLANG_SAMPLING_PARAMS = frozenset({
    "max_new_tokens", "min_new_tokens", "temperature", "top_p", "top_k", "min_p", "repetition_penalty",
    "frequency_penalty", "presence_penalty", "stop", "stop_token_ids", "ignore_eos", "skip_special_tokens",
    "no_stop_trim", "logit_bias", "sampling_seed", "json_schema", "regex", "ebnf", "structural_tag",
})  # fmt: skip

VLLM = Dialect(
    name="vllm",
    accepted_fields=COMMON_FIELDS | EXTENDED_FIELDS | VLLM_FIELDS | {"mm_processor_kwargs"},
    raw=RawDialect(
        path="/v1/completions",
        accepted_fields=RAW_COMMON_FIELDS | RAW_EXTENDED_FIELDS | VLLM_FIELDS | {"n", "logprobs", "response_format"},
    ),
    reasoning_field="reasoning",
    asides={"/version": {"version": "0.32.0"}},
    card={"max_model_len": 32768, "owned_by": "vllm", "root": "m", "parent": None, "permission": []},
    counting="/tokenize",
    tokenizing="/tokenize",
)
SGLANG = Dialect(
    name="sglang",
    accepted_fields=COMMON_FIELDS
    | EXTENDED_FIELDS
    | {"no_stop_trim", "cache_salt", "priority", "rid", "regex", "ebnf", "logit_bias", "min_tokens", "stop_token_ids"},
    raw=RawDialect(
        path="/generate",
        shape="generate",
        accepted_fields=frozenset({
            "text", "input_ids", "sampling_params", "stream", "return_logprob", "top_logprobs_num",
            "return_text_in_logprobs", "return_prompt_token_ids", "cache_salt", "priority", "rid",
        }),
        sampling_params=SGLANG_SAMPLING_PARAMS,
    ),
    asides={
        "/server_info": {"version": "0.5.9", "model_path": "m"},
        "/model_info": {
            "model_path": "m", "is_generation": True, "has_image_understanding": True, "tool_call_parser": "qwen",
            "reasoning_parser": "qwen3",
        },
    },
    card={"max_model_len": 32768, "owned_by": "sglang"},
    counting="/tokenize",
    tokenizing="/tokenize",
)  # fmt: skip
OVMS = Dialect(
    name="ovms",
    base_path="/v3",
    accepted_fields=(
        COMMON_FIELDS | EXTENDED_FIELDS | BEAM_FIELDS | SPECULATION_FIELDS | {"include_stop_str_in_output"}
    )
    - {"top_logprobs", "parallel_tool_calls", "reasoning_effort"},
    raw=RawDialect(
        path="/v3/completions",
        accepted_fields=RAW_COMMON_FIELDS
        | RAW_EXTENDED_FIELDS
        | BEAM_FIELDS
        | SPECULATION_FIELDS
        | {"n", "include_stop_str_in_output"},
    ),
    asides={"/v2": {"name": "OpenVINO Model Server", "version": "2026.3"}},
    tokenizing="/v3/tokenize",
    reports_cached=False,
    includes_stop=True,
)
LLAMACPP = Dialect(
    name="llamacpp-server",
    accepted_fields=(COMMON_FIELDS | EXTENDED_FIELDS | {"repeat_penalty", "return_progress", "grammar", "logit_bias"})
    - {"repetition_penalty", "skip_special_tokens"},
    raw=RawDialect(
        path="/completion",
        shape="completion",
        accepted_fields=frozenset({
            "model", "prompt", "stream", "n_predict", "return_tokens", "return_progress", "cache_prompt", "grammar",
            "response_fields", "temperature", "top_p", "top_k", "min_p", "repeat_penalty", "frequency_penalty",
            "presence_penalty", "stop", "seed", "ignore_eos", "n_probs", "json_schema", "logit_bias",
        }),
    ),
    asides={"/props": {"total_slots": 2, "build_info": "b9000-abc", "modalities": {"vision": False}}},
    card={"meta": {"n_ctx": 32768, "n_ctx_train": 131072}, "owned_by": "llamacpp"},
    counting="/v1/chat/completions/input_tokens",
    tokenizing="/tokenize",
)  # fmt: skip
OLLAMA = Dialect(
    name="ollama",
    accepted_fields=COMMON_FIELDS - {"n", "tool_choice", "parallel_tool_calls", "max_completion_tokens"},
    raw=RawDialect(path="/v1/completions", accepted_fields=RAW_COMMON_FIELDS | {"logprobs"}),
    reasoning_field="reasoning",
    asides={
        "/api/version": {"version": "0.40.12"},
        "/api/show": {"capabilities": ["completion", "tools", "vision", "thinking", "embedding"], "details": {}},
    },
    embedding="/v1/embeddings",
    reports_cached=False,
    joins_calls=True,
)
OPENAI = Dialect(
    name="openai",
    accepted_fields=(COMMON_FIELDS | {"prompt_cache_key", "logit_bias"}) - {"max_tokens"},
    raw=RawDialect(
        path="/v1/completions", accepted_fields=RAW_COMMON_FIELDS | {"n", "logprobs", "logit_bias", "prompt_cache_key"}
    ),
    embedding="/v1/embeddings",
)
DIALECTS = {dialect.name: dialect for dialect in (VLLM, SGLANG, OVMS, LLAMACPP, OLLAMA, OPENAI)}


def find_dialect(name: str) -> Dialect:
    """Return the dialect of a server; a server that is not described here has the common fields of OpenAI's API."""
    raw = RawDialect(path="/v1/completions", accepted_fields=RAW_COMMON_FIELDS | {"logprobs"})
    return DIALECTS.get(name) or Dialect(name=name, accepted_fields=COMMON_FIELDS, raw=raw)
