# ruff: noqa: E501 - table rows are not wrapped
"""Every cell of the field table for raw prompts: the field is sent as expected, or rejected by a 400 that names it.

The expectations are written independently, by hand.
"""

from typing import Any

import pytest

from antiphon.core.prompt import Grammar, JsonSchema, Segment, StructuralTag, TextPrompt
from antiphon.engines.http.fields import CHAT_FIELDS as ALL_FIELDS
from tests.engines.http.stubs.chat_stub import run_stub
from tests.engines.http.stubs.dialects import DIALECTS
from tests.engines.http.stubs.generation import make_request, open_engine, run_generation

pytestmark = pytest.mark.anyio

Json = dict[str, Any]
Row = dict[str, Json | None]
NAMES = tuple(DIALECTS)
UNSUPPORTED = None
PROMPT = TextPrompt((Segment("Once", control=True),))
STANDARD_FIELDS = {
    "model", "prompt", "text", "stream", "stream_options", "return_tokens", "return_progress", "cache_prompt",
    "response_fields",
}  # fmt: skip
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": False}
FORMAT = {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA, "strict": True}}
GUIDED = {**SCHEMA, "x-guidance": {"whitespace_flexible": False, "lenient": False}}
TAG: Json = {"format": {"type": "any_text"}}


def sampling_params(**fields: Any) -> Json:
    return {"sampling_params": fields}


def make_row(**by_engine: Json | None) -> Row:
    """Build a row. Engines that are not named have the value of `rest`; without `rest` they reject the field."""
    by_name = {name.replace("_", "-"): fields for name, fields in by_engine.items()}
    return {name: by_name.get(name, by_name.get("rest")) for name in NAMES}


def same_for_all(**fields: Any) -> Row:
    return make_row(rest=fields, sglang=sampling_params(**fields))


CASES: dict[str, tuple[Json, Row]] = {
    "max_output_tokens": (
        {"max_tokens": 3},
        make_row(rest={"max_tokens": 3}, sglang=sampling_params(max_new_tokens=3), llamacpp_server={"n_predict": 3}),
    ),
    "temperature": ({"temperature": 0.5}, same_for_all(temperature=0.5)),
    "top_p": ({"top_p": 0.5}, same_for_all(top_p=0.5)),
    "top_k": ({"top_k": -1}, make_row(vllm={"top_k": -1}, sglang=sampling_params(top_k=-1), ovms={"top_k": -1}, llamacpp_server={"top_k": 0})),
    "min_p": ({"min_p": 0.5}, make_row(vllm={"min_p": 0.5}, sglang=sampling_params(min_p=0.5), ovms={"min_p": 0.5}, llamacpp_server={"min_p": 0.5})),
    "repetition_penalty": (
        {"repetition_penalty": 1.5},
        make_row(vllm={"repetition_penalty": 1.5}, sglang=sampling_params(repetition_penalty=1.5), ovms={"repetition_penalty": 1.5}, llamacpp_server={"repeat_penalty": 1.5}),
    ),
    "frequency_penalty": ({"frequency_penalty": 0.5}, same_for_all(frequency_penalty=0.5)),
    "presence_penalty": ({"presence_penalty": 0.5}, same_for_all(presence_penalty=0.5)),
    "stop": ({"stop": ("##",)}, same_for_all(stop=["##"])),
    "include_stop_str_in_output": (
        {"include_stop_str_in_output": True},
        make_row(vllm={"include_stop_str_in_output": True}, sglang=sampling_params(no_stop_trim=True), ovms={"include_stop_str_in_output": True}, llamacpp_server={}),
    ),
    "seed": ({"seed": 2**32 - 1}, make_row(rest={"seed": 2**32 - 1}, sglang=sampling_params(sampling_seed=2**32 - 1), llamacpp_server={"seed": 2**32 - 2})),
    "ignore_eos": (
        {"ignore_eos": True, "max_tokens": 3},
        make_row(vllm={"ignore_eos": True, "max_tokens": 3}, sglang=sampling_params(ignore_eos=True, max_new_tokens=3), ovms={"ignore_eos": True, "max_tokens": 3}, llamacpp_server={"ignore_eos": True, "n_predict": 3}),
    ),
    "skip_special_tokens": (
        {"skip_special_tokens": False},
        make_row(vllm={"skip_special_tokens": False}, sglang=sampling_params(skip_special_tokens=False), ovms={"skip_special_tokens": False}),
    ),
    "best_of": ({"best_of": 3}, make_row(vllm={"n": 3, "use_beam_search": True}, ovms={"best_of": 3})),
    "length_penalty": ({"length_penalty": 0.5}, make_row(vllm={"length_penalty": 0.5}, ovms={"length_penalty": 0.5})),
    "top_logprobs": (
        {"logprobs": 0},
        make_row(
            rest={"logprobs": 0},
            sglang={"top_logprobs_num": 0, "return_logprob": True, "return_text_in_logprobs": True},
            ovms=UNSUPPORTED,
            llamacpp_server={"n_probs": 1},
        ),
    ),
    "num_assistant_tokens": ({"num_assistant_tokens": 4}, make_row(ovms={"num_assistant_tokens": 4})),
    "assistant_confidence_threshold": ({"assistant_confidence_threshold": 0.5}, make_row(ovms={"assistant_confidence_threshold": 0.5})),
    "max_ngram_size": ({"max_ngram_size": 3}, make_row(ovms={"max_ngram_size": 3})),
    "text.format": (
        {"constraint": JsonSchema(SCHEMA)},
        make_row(
            vllm={"response_format": FORMAT},
            sglang=sampling_params(json_schema='{"type":"object","properties":{"a":{"type":"integer"}},"required":["a"],"additionalProperties":false}'),
            llamacpp_server={"json_schema": GUIDED},
        ),
    ),
    "structural_tag": (
        {"constraint": StructuralTag(TAG)},
        make_row(
            vllm={"response_format": {"type": "structural_tag", **TAG}},
            sglang=sampling_params(structural_tag='{"type":"structural_tag","format":{"type":"any_text"}}'),
        ),
    ),
    "grammar.regex": ({"constraint": Grammar("regex", "[ab]")}, make_row(vllm={"structured_outputs": {"regex": "[ab]"}}, sglang=sampling_params(regex="[ab]"))),
    "grammar.gbnf": (
        {"constraint": Grammar("gbnf", "root ::= [ab]")},
        make_row(vllm={"structured_outputs": {"grammar": "root ::= [ab]"}}, sglang=sampling_params(ebnf="root ::= [ab]"), llamacpp_server={"grammar": "root ::= [ab]"}),
    ),
    "grammar.lark": ({"constraint": Grammar("lark", 'start: "a"')}, make_row(vllm={"structured_outputs": {"grammar": 'start: "a"'}})),
    "logit_bias": (
        {"logit_bias": {"7": -1.5}},
        make_row(vllm={"logit_bias": {"7": -1.5}}, openai={"logit_bias": {"7": -1.5}}, sglang=sampling_params(logit_bias={"7": -1.5}), llamacpp_server={"logit_bias": [[7, -1.5]]}),
    ),
    "min_tokens": ({"min_tokens": 2}, make_row(vllm={"min_tokens": 2}, sglang=sampling_params(min_new_tokens=2))),
    "stop_token_ids": ({"stop_token_ids": (2, 3)}, make_row(vllm={"stop_token_ids": [2, 3]}, sglang=sampling_params(stop_token_ids=[2, 3]), llamacpp_server={})),
    "prompt_logprobs": ({"prompt_logprobs": 1}, make_row(vllm={"prompt_logprobs": 1})),
    "return_token_ids": ({"return_token_ids": True}, make_row(vllm={"return_token_ids": True}, sglang={"return_prompt_token_ids": True}, llamacpp_server={})),
    "kv_transfer_params": ({"kv_transfer_params": {"a": 1}}, make_row(vllm={"kv_transfer_params": {"a": 1}})),
    "cache_salt": ({"salt": "s"}, make_row(rest={}, vllm={"cache_salt": "s"}, sglang={"cache_salt": "s"})),
    "prompt_cache_key": ({"cache_key": "k"}, make_row(rest={}, openai={"prompt_cache_key": "k"})),
    "priority": ({"priority": 3}, make_row(vllm={"priority": 3}, sglang={"priority": 3})),
    "request_id": ({"request_id": "r"}, make_row(vllm={"request_id": "r"}, sglang={"rid": "r"})),
    "mm_processor_kwargs": ({"mm_processor_kwargs": {"a": 1}}, make_row()),
    "reasoning.effort": ({"effort": "high"}, make_row(rest={})),
}  # fmt: skip
# Fields that do not apply to a raw prompt: the template renders them, or they are rejected or handled before rendering.
CHAT_FIELDS = {
    "n",
    "chat_template_kwargs",
    "reasoning items",
    "tools",
    "tool_choice",
    "parallel_tool_calls",
    "input_image",
    "input_audio",
}


def test_every_field_of_the_table_has_a_case_for_raw_prompts() -> None:
    assert CASES.keys() | CHAT_FIELDS == ALL_FIELDS.keys()


@pytest.mark.parametrize("engine", NAMES)
@pytest.mark.parametrize("field", CASES)
@pytest.mark.shows("C.14", "C.15")
async def test_a_field_beside_a_raw_prompt_is_sent_or_rejected(field: str, engine: str) -> None:
    fields, row = CASES[field]
    expected_fields = row[engine]
    async with run_stub(engine) as stub, open_engine(stub.url) as under_test:
        result = await run_generation(under_test, make_request(prompt=PROMPT, **({"max_tokens": 16} | fields)))
        if expected_fields is UNSUPPORTED:
            assert result.error is not None
            assert result.error.status == 400
            assert result.error.param in (field, "text.format")
            assert f"the {engine} engine" in result.error.message
            assert not stub.raw_bodies
            return
        assert result.error is None, result.error
        (sent,) = stub.raw_bodies
        length = {"max_tokens": 16, "n_predict": 16}
        others = {
            name: value for name, value in sent.items() if name not in STANDARD_FIELDS and length.get(name) != value
        }
        nested = others.get("sampling_params", {})
        if nested.get("max_new_tokens") == 16:
            others["sampling_params"] = {name: value for name, value in nested.items() if name != "max_new_tokens"}
        assert {name: value for name, value in others.items() if value != {}} == expected_fields
        assert result.chunks[-1].finish is not None
        assert not stub.chat_bodies
