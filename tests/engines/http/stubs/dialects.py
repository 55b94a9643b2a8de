"""What each server that Antiphon can have as an engine takes and tells of itself, written once more by hand from its
documentation, not from our table."""

from typing import Any, Literal

from msgspec import Struct

Json = dict[str, Any]
Shape = Literal["completions", "generate", "completion"]


class Raw(Struct, frozen=True, kw_only=True):
    """How a raw prompt is completed there. `within` are the fields of `sampling_params`, where there are such."""

    path: str
    shape: Shape = "completions"
    takes: frozenset[str]
    within: frozenset[str] = frozenset()


class Dialect(Struct, frozen=True, kw_only=True):
    name: str
    port: str = "/v1"
    takes: frozenset[str]
    raw: Raw
    thought: str = "reasoning_content"
    asides: dict[str, Json] = {}  # path → what a GET or POST of it is answered
    card: Json = {}
    counting: str = ""
    tokenizing: str = ""
    embedding: str = ""
    tells_cached: bool = True
    whole_calls: bool = False
    keeps_stop: bool = False
    parses_tools: bool = True  # of vLLM
    sees: bool = True
    generates: bool = True


EVERYONE = frozenset({
    "model", "messages", "stream", "stream_options", "temperature", "top_p", "frequency_penalty", "presence_penalty",
    "stop", "seed", "response_format", "tools", "tool_choice", "parallel_tool_calls", "logprobs", "top_logprobs", "n",
    "reasoning_effort", "max_tokens", "max_completion_tokens",
})  # fmt: skip
BEYOND = frozenset(
    {"top_k", "min_p", "repetition_penalty", "ignore_eos", "skip_special_tokens", "chat_template_kwargs"}
)
RAW_EVERYONE = frozenset({
    "model", "prompt", "stream", "stream_options", "temperature", "top_p", "frequency_penalty", "presence_penalty",
    "stop", "seed", "max_tokens",
})  # fmt: skip
RAW_BEYOND = BEYOND - {"chat_template_kwargs"}
BEAMS = frozenset({"best_of", "length_penalty"})
DRAFTS = frozenset({"num_assistant_tokens", "assistant_confidence_threshold", "max_ngram_size"})
VLLM_ONLY = frozenset({
    "include_stop_str_in_output", "cache_salt", "priority", "request_id", "use_beam_search", "length_penalty",
    "structured_outputs",
    "logit_bias", "min_tokens", "stop_token_ids", "prompt_logprobs", "return_token_ids", "kv_transfer_params",
})  # fmt: skip
SAMPLING_PARAMS = frozenset({
    "max_new_tokens", "min_new_tokens", "temperature", "top_p", "top_k", "min_p", "repetition_penalty",
    "frequency_penalty", "presence_penalty", "stop", "stop_token_ids", "ignore_eos", "skip_special_tokens",
    "no_stop_trim", "logit_bias", "sampling_seed", "json_schema", "regex", "ebnf", "structural_tag",
})  # fmt: skip

VLLM = Dialect(
    name="vllm",
    takes=EVERYONE | BEYOND | VLLM_ONLY | {"mm_processor_kwargs"},
    raw=Raw(
        path="/v1/completions",
        takes=RAW_EVERYONE | RAW_BEYOND | VLLM_ONLY | {"n", "logprobs", "response_format"},
    ),
    thought="reasoning",
    asides={"/version": {"version": "0.32.0"}},
    card={"max_model_len": 32768, "owned_by": "vllm", "root": "m", "parent": None, "permission": []},
    counting="/tokenize",
    tokenizing="/tokenize",
)
SGLANG = Dialect(
    name="sglang",
    takes=EVERYONE
    | BEYOND
    | {"no_stop_trim", "cache_salt", "priority", "rid", "regex", "ebnf", "logit_bias", "min_tokens", "stop_token_ids"},
    raw=Raw(
        path="/generate",
        shape="generate",
        takes=frozenset({
            "text", "input_ids", "sampling_params", "stream", "return_logprob", "top_logprobs_num",
            "return_text_in_logprobs", "return_prompt_token_ids", "cache_salt", "priority", "rid",
        }),
        within=SAMPLING_PARAMS,
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
    port="/v3",
    takes=(EVERYONE | BEYOND | BEAMS | DRAFTS | {"include_stop_str_in_output"})
    - {"logprobs", "top_logprobs", "parallel_tool_calls", "reasoning_effort"},
    raw=Raw(
        path="/v3/completions",
        takes=RAW_EVERYONE | RAW_BEYOND | BEAMS | DRAFTS | {"n", "include_stop_str_in_output"},
    ),
    asides={"/v2": {"name": "OpenVINO Model Server", "version": "2026.3"}},
    tokenizing="/v3/tokenize",
    tells_cached=False,
    keeps_stop=True,
)
LLAMACPP = Dialect(
    name="llamacpp-server",
    takes=(EVERYONE | BEYOND | {"repeat_penalty", "return_progress", "grammar", "logit_bias"})
    - {"repetition_penalty", "skip_special_tokens"},
    raw=Raw(
        path="/completion",
        shape="completion",
        takes=frozenset({
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
    takes=EVERYONE - {"n", "tool_choice", "parallel_tool_calls", "max_completion_tokens"},
    raw=Raw(path="/v1/completions", takes=RAW_EVERYONE | {"logprobs"}),
    thought="reasoning",
    asides={
        "/api/version": {"version": "0.40.12"},
        "/api/show": {"capabilities": ["completion", "tools", "vision", "thinking", "embedding"], "details": {}},
    },
    embedding="/v1/embeddings",
    tells_cached=False,
    whole_calls=True,
)
OPENAI = Dialect(
    name="openai",
    takes=(EVERYONE | {"prompt_cache_key", "logit_bias"}) - {"max_tokens"},
    raw=Raw(path="/v1/completions", takes=RAW_EVERYONE | {"n", "logprobs", "logit_bias", "prompt_cache_key"}),
    embedding="/v1/embeddings",
)
DIALECTS = {dialect.name: dialect for dialect in (VLLM, SGLANG, OVMS, LLAMACPP, OLLAMA, OPENAI)}
