"""What is kept of a sampling from one body to the next is nobody else's, and is not kept without a bound."""

from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from antiphon.core.prompt import ChatPrompt, Grammar, JsonObject, JsonSchema, Sampling, TokenPrompt, Work
from antiphon.engines.http.adapters.llamacpp_server import LlamaCppServer
from antiphon.engines.http.adapters.ollama import Ollama
from antiphon.engines.http.body import ChatBody, RawBody, Words
from antiphon.engines.http.fields import column, raw_column

CHAT = ChatPrompt(({"role": "user", "content": "hi"},))
THOUGHT = {"role": "assistant", "content": "", "reasoning_content": "Hm."}
TOOLS = tuple({"type": "function", "function": {"name": name, "parameters": {}}} for name in ("look", "hear"))
NAMED = {"type": "function", "function": {"name": "look"}}


def sent(body: ChatBody | RawBody, **work: Any) -> dict[str, Any]:
    asked = Work(**{"model": "m", "prompt": CHAT, **work})
    made: dict[str, Any] = msgspec.json.decode(body.make(asked, stream=False))
    return made


def test_what_one_work_asks_for_beside_a_shared_sampling_is_not_asked_for_by_the_next() -> None:
    body = RawBody(Words("sglang", raw_column("sglang")), {}, text="text", ids="input_ids", named=False)
    sampling, prompt = Sampling(temperature=0.5), TokenPrompt((1, 2))
    alone = sent(body, sampling=sampling, prompt=prompt)
    guided = sent(body, sampling=sampling, prompt=prompt, constraint=Grammar("regex", "a+"))
    assert alone["sampling_params"] == {"temperature": 0.5}
    assert guided["sampling_params"] == {"temperature": 0.5, "regex": "a+"}
    assert sent(body, sampling=sampling, prompt=prompt) == alone


def test_a_sampling_is_never_taken_for_another_that_was_there_before() -> None:
    body = ChatBody(Words("vllm", column("vllm")), {})
    for most in range(1, 1000):
        assert sent(body, sampling=Sampling(max_tokens=most))["max_completion_tokens"] == most


def test_an_answer_is_a_message_of_its_own_where_an_engine_would_go_on_with_the_last_one() -> None:
    """llama.cpp's server continues it, and in JSON says it once more before that, but not in a stream."""
    words = Words("llamacpp-server", column("llamacpp-server"))
    body = ChatBody(words, {}, goes_on=LlamaCppServer.goes_on and Ollama.goes_on)
    said = ({"role": "user", "content": "hi"}, {"role": "assistant", "content": "Hello"})
    nobody = {"role": "user", "content": ""}
    for messages, expected in [
        (said, [*said, nobody]),
        (CHAT.messages, [*CHAT.messages]),
        ((*CHAT.messages, THOUGHT), [*CHAT.messages, THOUGHT, nobody]),
    ]:
        prompt = ChatPrompt(messages)
        assert sent(body, prompt=prompt, sampling=Sampling())["messages"] == expected
        assert [*body.messages(prompt)] == expected  # which is what is counted
    assert sent(ChatBody(words, {}), prompt=ChatPrompt(said), sampling=Sampling())["messages"] == [*said]


WISHES: dict[str, list[Any]] = {
    "model": ["m", 'an "m"'],
    "prompt": [
        CHAT,
        ChatPrompt(({"role": "user", "content": "é\n"}, THOUGHT)),
        *[ChatPrompt(CHAT.messages, template_kwargs={"enable_thinking": answer}) for answer in (False, 0, 0.0)],
        ChatPrompt(CHAT.messages, TOOLS, parallel_tool_calls=False),
        *[ChatPrompt(CHAT.messages, TOOLS, choice) for choice in ("auto", "required", NAMED)],
        *[ChatPrompt(CHAT.messages, tools) for tools in (TOOLS[:1], TOOLS[1:])],
    ],
    "sampling": [Sampling(temperature=0.5), Sampling(max_tokens=9)],
    "effort": [None, "low", "high"],
    "constraint": [None, JsonObject(), JsonSchema({"type": "object"}), JsonSchema({"type": "object"}, "other")],
    "cache_key": [None, "k", "l"],
    "salt": [None, "s", "t"],
    "priority": [None, 0, 1],
    "request_id": [None, "r"],
}
WORKS = st.fixed_dictionaries({name: st.sampled_from(values) for name, values in WISHES.items()})


@given(asked=st.lists(WORKS, max_size=9), stream=st.booleans())
def test_what_is_kept_makes_the_same_bodies_as_what_is_made_anew(asked: list[dict[str, Any]], stream: bool) -> None:
    def fresh() -> ChatBody:
        return ChatBody(Words("vllm", column("vllm")), {"more": 1})

    kept = fresh()
    for work in [Work(**fields) for fields in asked for _ in range(2)]:
        made = kept.make(work, stream=stream)
        assert made == fresh().make(work, stream=stream)
        assert [*msgspec.json.decode(made)][:3] == ["model", "messages", "stream"]


def test_nothing_is_kept_of_messages_nor_of_what_is_long() -> None:
    body, sampling = ChatBody(Words("vllm", column("vllm")), {}), Sampling()
    for tools in (TOOLS, tuple({**tool, "description": "x" * 40_000} for tool in TOOLS)):
        sent(body, sampling=sampling, prompt=ChatPrompt(CHAT.messages, tools))
    [(_, rest)] = vars(body)["_rests"][False].values()
    assert rest.tools is TOOLS
    assert CHAT.messages not in msgspec.structs.astuple(rest)


def test_many_long_ones_are_not_kept_at_once() -> None:
    body = ChatBody(Words("vllm", column("vllm")), {})
    for number in range(50):
        tools = ({**TOOLS[0], "description": "x" * 30_000},)
        sent(body, sampling=Sampling(max_tokens=number + 1), prompt=ChatPrompt(CHAT.messages, tools))
        assert sum(len(rest.before + rest.after) for _, rest in vars(body)["_rests"][False].values()) <= 256 * 1024


def test_so_many_are_kept_and_none_that_a_client_can_make_long() -> None:
    words = Words("vllm", column("vllm"))
    body = ChatBody(words, {})
    for most in range(1, 1000):
        sent(body, sampling=Sampling(max_tokens=most))
    kept = [vars(words)["_sampled"], vars(body)["_rests"][False]]
    for made in kept:
        assert 0 < len(made) <= 64
        made.clear()
    for wish in ({"stop": ("x" * 1000,)}, {"stop_token_ids": (1,) * 1000}, {"logit_bias": {"1": 1.0}}):
        sent(body, sampling=Sampling(**wish))
    assert kept == [{}, {}]
