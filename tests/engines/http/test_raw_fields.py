# ruff: noqa: E501 - rows of a table are as long as they are
"""Every cell of the table of fields where a raw prompt is completed: on the wire as expected, or a 400 that names it.
What is expected is written here once more, by hand."""

from typing import Any

import pytest

from antiphon.core.prompt import Grammar, JsonSchema, Segment, StructuralTag, TextPrompt
from antiphon.engines.http.fields import NAMES, TABLE, raw_column
from tests.engines.http.stubs.chat_stub import standing_in
from tests.engines.http.stubs.generation import ask, opened, work

pytestmark = pytest.mark.anyio

Json = dict[str, Any]
Row = dict[str, Json | None]
REFUSED = None
PROMPT = TextPrompt((Segment("Once", control=True),))
ALWAYS = {
    "model", "prompt", "text", "stream", "stream_options", "return_tokens", "return_progress", "cache_prompt",
    "response_fields",
}  # fmt: skip
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": False}
FORMAT = {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA, "strict": True}}
GUIDED = {**SCHEMA, "x-guidance": {"whitespace_flexible": False, "lenient": False}}
TAG: Json = {"format": {"type": "any_text"}}


def params(**wire: Any) -> Json:
    return {"sampling_params": wire}


def row(**by_engine: Json | None) -> Row:
    """Who is not in it refuses; `rest` is for all that are not named."""
    given = {name.replace("_", "-"): wire for name, wire in by_engine.items()}
    return {name: given.get(name, given.get("rest")) for name in NAMES}


def same(**wire: Any) -> Row:
    return row(rest=wire, sglang=params(**wire))


ASKED: dict[str, tuple[Json, Row]] = {
    "max_output_tokens": (
        {"max_tokens": 3},
        row(rest={"max_tokens": 3}, sglang=params(max_new_tokens=3), llamacpp_server={"n_predict": 3}),
    ),
    "temperature": ({"temperature": 0.5}, same(temperature=0.5)),
    "top_p": ({"top_p": 0.5}, same(top_p=0.5)),
    "top_k": ({"top_k": -1}, row(vllm={"top_k": -1}, sglang=params(top_k=-1), ovms={"top_k": -1}, llamacpp_server={"top_k": 0})),
    "min_p": ({"min_p": 0.5}, row(vllm={"min_p": 0.5}, sglang=params(min_p=0.5), ovms={"min_p": 0.5}, llamacpp_server={"min_p": 0.5})),
    "repetition_penalty": (
        {"repetition_penalty": 1.5},
        row(vllm={"repetition_penalty": 1.5}, sglang=params(repetition_penalty=1.5), ovms={"repetition_penalty": 1.5}, llamacpp_server={"repeat_penalty": 1.5}),
    ),
    "frequency_penalty": ({"frequency_penalty": 0.5}, same(frequency_penalty=0.5)),
    "presence_penalty": ({"presence_penalty": 0.5}, same(presence_penalty=0.5)),
    "stop": ({"stop": ("##",)}, same(stop=["##"])),
    "include_stop_str_in_output": (
        {"include_stop_str_in_output": True},
        row(vllm={"include_stop_str_in_output": True}, sglang=params(no_stop_trim=True), ovms={"include_stop_str_in_output": True}, llamacpp_server={}),
    ),
    "seed": ({"seed": 2**32 - 1}, row(rest={"seed": 2**32 - 1}, sglang=params(sampling_seed=2**32 - 1), llamacpp_server={"seed": 2**32 - 2})),
    "ignore_eos": (
        {"ignore_eos": True, "max_tokens": 3},
        row(vllm={"ignore_eos": True, "max_tokens": 3}, sglang=params(ignore_eos=True, max_new_tokens=3), ovms={"ignore_eos": True, "max_tokens": 3}, llamacpp_server={"ignore_eos": True, "n_predict": 3}),
    ),
    "skip_special_tokens": (
        {"skip_special_tokens": False},
        row(vllm={"skip_special_tokens": False}, sglang=params(skip_special_tokens=False), ovms={"skip_special_tokens": False}),
    ),
    "best_of": ({"best_of": 3}, row(vllm={"n": 3, "use_beam_search": True}, ovms={"best_of": 3})),
    "length_penalty": ({"length_penalty": 0.5}, row(vllm={"length_penalty": 0.5}, ovms={"length_penalty": 0.5})),
    "top_logprobs": (
        {"logprobs": 0},
        row(
            rest={"logprobs": 0},
            sglang={"top_logprobs_num": 0, "return_logprob": True, "return_text_in_logprobs": True},
            ovms=REFUSED,
            llamacpp_server={"n_probs": 1},
        ),
    ),
    "num_assistant_tokens": ({"num_assistant_tokens": 4}, row(ovms={"num_assistant_tokens": 4})),
    "assistant_confidence_threshold": ({"assistant_confidence_threshold": 0.5}, row(ovms={"assistant_confidence_threshold": 0.5})),
    "max_ngram_size": ({"max_ngram_size": 3}, row(ovms={"max_ngram_size": 3})),
    "text.format": (
        {"constraint": JsonSchema(SCHEMA)},
        row(
            vllm={"response_format": FORMAT},
            sglang=params(json_schema='{"type":"object","properties":{"a":{"type":"integer"}},"required":["a"],"additionalProperties":false}'),
            llamacpp_server={"json_schema": GUIDED},
        ),
    ),
    "structural_tag": (
        {"constraint": StructuralTag(TAG)},
        row(
            vllm={"response_format": {"type": "structural_tag", **TAG}},
            sglang=params(structural_tag='{"type":"structural_tag","format":{"type":"any_text"}}'),
        ),
    ),
    "grammar.regex": ({"constraint": Grammar("regex", "[ab]")}, row(vllm={"structured_outputs": {"regex": "[ab]"}}, sglang=params(regex="[ab]"))),
    "grammar.gbnf": (
        {"constraint": Grammar("gbnf", "root ::= [ab]")},
        row(vllm={"structured_outputs": {"grammar": "root ::= [ab]"}}, sglang=params(ebnf="root ::= [ab]"), llamacpp_server={"grammar": "root ::= [ab]"}),
    ),
    "grammar.lark": ({"constraint": Grammar("lark", 'start: "a"')}, row(vllm={"structured_outputs": {"grammar": 'start: "a"'}})),
    "logit_bias": (
        {"logit_bias": {"7": -1.5}},
        row(vllm={"logit_bias": {"7": -1.5}}, openai={"logit_bias": {"7": -1.5}}, sglang=params(logit_bias={"7": -1.5}), llamacpp_server={"logit_bias": [[7, -1.5]]}),
    ),
    "min_tokens": ({"min_tokens": 2}, row(vllm={"min_tokens": 2}, sglang=params(min_new_tokens=2))),
    "stop_token_ids": ({"stop_token_ids": (2, 3)}, row(vllm={"stop_token_ids": [2, 3]}, sglang=params(stop_token_ids=[2, 3]), llamacpp_server={})),
    "prompt_logprobs": ({"prompt_logprobs": 1}, row(vllm={"prompt_logprobs": 1})),
    "return_token_ids": ({"return_token_ids": True}, row(vllm={"return_token_ids": True}, sglang={"return_prompt_token_ids": True}, llamacpp_server={})),
    "kv_transfer_params": ({"kv_transfer_params": {"a": 1}}, row(vllm={"kv_transfer_params": {"a": 1}})),
    "cache_salt": ({"salt": "s"}, row(rest={}, vllm={"cache_salt": "s"}, sglang={"cache_salt": "s"})),
    "prompt_cache_key": ({"cache_key": "k"}, row(rest={}, openai={"prompt_cache_key": "k"})),
    "priority": ({"priority": 3}, row(vllm={"priority": 3}, sglang={"priority": 3})),
    "request_id": ({"request_id": "r"}, row(vllm={"request_id": "r"}, sglang={"rid": "r"})),
    "mm_processor_kwargs": ({"mm_processor_kwargs": {"a": 1}}, row()),
    "reasoning.effort": ({"effort": "high"}, row(rest={})),
}  # fmt: skip
# What a raw prompt cannot ask for: it is said by the template, or it is refused or done before there is a raw prompt.
RENDERED = {
    "n",
    "chat_template_kwargs",
    "reasoning items",
    "tools",
    "tool_choice",
    "parallel_tool_calls",
    "input_image",
}


def test_every_cell_for_raw_prompts_is_posted_here() -> None:
    assert ASKED.keys() | RENDERED == TABLE.keys()
    assert all(raw_column(name).keys() == TABLE.keys() for name in NAMES)


@pytest.mark.parametrize("engine", NAMES)
@pytest.mark.parametrize("field", ASKED)
@pytest.mark.shows("C.14", "C.15")
async def test_a_field_beside_a_raw_prompt_is_on_the_wire_or_refused(field: str, engine: str) -> None:
    asked, expected = ASKED[field]
    wire = expected[engine]
    async with standing_in(engine) as stub, opened(stub.url) as under_test:
        said = await ask(under_test, work(prompt=PROMPT, **({"max_tokens": 16} | asked)))
        if wire is REFUSED:
            assert said.error is not None
            assert said.error.status == 400
            assert said.error.param in (field, "text.format")
            assert f"the {engine} engine" in said.error.message
            assert not stub.completed
            return
        assert said.error is None, said.error
        (sent,) = stub.completed
        length = {"max_tokens": 16, "n_predict": 16}
        others = {name: value for name, value in sent.items() if name not in ALWAYS and length.get(name) != value}
        within = others.get("sampling_params", {})
        if within.get("max_new_tokens") == 16:
            others["sampling_params"] = {name: value for name, value in within.items() if name != "max_new_tokens"}
        assert {name: value for name, value in others.items() if value != {}} == wire
        assert said.chunks[-1].finish is not None
        assert not stub.seen
