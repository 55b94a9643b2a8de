"""Model output is parsed by the format of its family, streamed or not, and efforts become the variables of a
template.

Covers `service/model_io/raw.py`.
"""

from collections.abc import Iterator

import pytest
from msgspec.structs import replace

from antiphon.core.deltas import Text
from antiphon.core.prompt import IMAGE_MARKER, ChatTemplate, Chunk, ParserChoice, TextPrompt
from antiphon.engines.base import Capabilities
from antiphon.engines.fake import FakeEngine, FakeSettings
from antiphon.errors import UnsupportedParameter
from antiphon.protocol.types.events import Event, OutputTextDelta
from antiphon.protocol.types.items import FunctionCall, Message, OutputItem, Reasoning
from antiphon.protocol.types.parts import Logprob, OutputText
from antiphon.protocol.types.response import Response
from antiphon.render.control_token_escape import escape_text
from tests.service.requests import accept_request, create_response, get_text, make_responses, stream_events
from tests.support.media_files import encode_data_url, png

pytestmark = pytest.mark.anyio
TOOLS = [{"type": "function", "name": "f", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}}]
CALL = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'
REPLY = f"<think>\nhm\n</think>\n\nWell.\n{CALL}"


class TemplatedEngine(FakeEngine):
    """An engine whose model has its own template."""

    def __init__(self, source: str, parser_choice: ParserChoice | None = None) -> None:
        super().__init__(FakeSettings(level="text", reads=parser_choice or ParserChoice()))
        self._source = source

    async def capabilities(self, model: str) -> Capabilities:
        capabilities = await super().capabilities(model)
        return replace(
            capabilities,
            template=ChatTemplate(source=self._source),
            supported_fields=capabilities.supported_fields - {"reasoning.effort"},
        )


class SeeingEngine(TemplatedEngine):
    """An engine that takes images with rendered prompts."""

    async def capabilities(self, model: str) -> Capabilities:
        capabilities = await super().capabilities(model)
        return replace(capabilities, supported_fields=capabilities.supported_fields | {"input_image"})


def list_item_types(response: Response) -> list[type[OutputItem]]:
    return [type(item) for item in response.output]


def get_last_prompt(engine: FakeEngine) -> str:
    prompt = engine.seen[-1].prompt
    assert isinstance(prompt, TextPrompt)
    return "".join([segment.text for segment in prompt.segments])


@pytest.mark.parametrize(
    ("parser_choice", "expected"),
    [
        (ParserChoice(reasoning="qwen3", calls="hermes"), [Reasoning, Message, FunctionCall]),
        (ParserChoice(reasoning="qwen3"), [Reasoning, Message]),
        (ParserChoice(calls="hermes"), [Message, FunctionCall]),
        (ParserChoice(), [Message]),
    ],
)
@pytest.mark.shows("D.8", "D4.11")
async def test_output_of_a_parsing_engine_is_parsed_only_as_configured(
    parser_choice: ParserChoice, expected: list[type[OutputItem]]
) -> None:
    engine = FakeEngine(FakeSettings(reads=parser_choice))
    engine.says(*[Text(char) for char in REPLY])
    assert list_item_types(await create_response(make_responses(engine), tools=TOOLS)) == expected


async def test_an_engine_with_an_unseen_prompt_may_start_within_reasoning() -> None:
    engine = FakeEngine(FakeSettings(reads=ParserChoice(reasoning="deepseek_r1")))
    engine.says(Text("hm\n</think>\n\nYes."))
    assert list_item_types(await create_response(make_responses(engine))) == [Reasoning, Message]
    engine.says(Text("Yes."))
    response = await create_response(make_responses(engine), reasoning={"effort": "none"})
    assert (list_item_types(response), get_text(response)) == ([Message], "Yes.")


async def test_reasoning_that_the_engine_splits_off_is_accepted() -> None:
    engine = FakeEngine(FakeSettings(reads=ParserChoice(reasoning="qwen3", calls="hermes")))
    engine.says(Chunk(reasoning="hm"), Text("Yes.\n"), Text(CALL))
    response = await create_response(make_responses(engine), tools=TOOLS)
    assert list_item_types(response) == [Reasoning, Message, FunctionCall]


async def test_truncated_reasoning_is_the_only_item_of_an_incomplete_response() -> None:
    engine = FakeEngine(FakeSettings(level="text"))
    engine.says(Text("<think>\nI wonder wh</thi"), finish="length")
    response = await create_response(make_responses(engine), tools=TOOLS)
    assert (response.status, list_item_types(response)) == ("incomplete", [Reasoning])
    (reasoning,) = response.output
    assert isinstance(reasoning, Reasoning)
    assert (reasoning.status, [part.text for part in reasoning.content or ()]) == ("incomplete", ["I wonder wh</thi"])


async def test_calls_are_not_parsed_without_tools() -> None:
    engine = FakeEngine(FakeSettings(level="text"))
    engine.says(Text(CALL))
    response = await create_response(make_responses(engine))
    assert (list_item_types(response), get_text(response)) == ([Message], CALL)


@pytest.mark.parametrize(
    ("source", "effort", "end"),
    [
        ("{{ messages[0].content }}{% if enable_thinking %}on{% else %}off{% endif %}", "high", "on"),
        ("{{ messages[0].content }}{% if enable_thinking %}on{% else %}off{% endif %}", "none", "off"),
        ("{{ messages[0].content }}{% if thinking %}on{% else %}off{% endif %}", "low", "on"),
        ("{{ messages[0].content }}{{ thinking_mode }}", "none", "disabled"),
        ("{{ messages[0].content }}{{ reasoning_effort }}", "medium", "medium"),
        ("{{ messages[0].content }}{% set no = 'no_think' %}{{ reasoning_effort }}", "none", "no_think"),
        ("{{ messages[0].content }}{{ thinking_budget }}", "none", "0"),
        ("{{ messages[0].content }}{{ thinking_effort }}", "xhigh", "max"),
        ("{{ messages[0].content }}<think>\n", "none", "<think>\n\n</think>\n\n"),
    ],
)
@pytest.mark.shows("A.35", "C1.2")
async def test_an_effort_is_translated_to_the_variables_of_the_template(source: str, effort: str, end: str) -> None:
    engine = TemplatedEngine(source)
    engine.says(Text("Yes."))
    response = await create_response(make_responses(engine), reasoning={"effort": effort})
    assert get_last_prompt(engine).endswith(end)
    assert get_text(response) == "Yes."


@pytest.mark.shows("C.61")
async def test_an_image_is_sent_with_the_rendered_prompt_and_escaped_text_is_restored() -> None:
    engine, image = SeeingEngine("{{ messages[0].content }}"), encode_data_url(png())
    engine.says(Text(f"It says {escape_text('<|im_end|>')}."))
    parts = [{"type": "input_image", "image_url": image}, {"type": "input_text", "text": "What does it say?"}]
    response = await create_response(make_responses(engine), input=[{"role": "user", "content": parts}])
    prompt = engine.seen[-1].prompt
    assert isinstance(prompt, TextPrompt)
    assert (prompt.images, get_last_prompt(engine)) == ((image,), f"{IMAGE_MARKER}\nWhat does it say?")
    assert get_text(response) == "It says <|im_end|>."


@pytest.mark.parametrize("model", ["deepseek-r1-distill-qwen-1.5b", "qwen2.5-coder"])
async def test_an_effort_without_a_variable_is_ignored_if_the_model_reasons_and_refused_otherwise(
    model: str,
) -> None:
    responses = make_responses(TemplatedEngine("{{ messages[0].content }}"))
    if model.startswith("qwen2.5"):
        with pytest.raises(UnsupportedParameter, match="no variable") as refused:
            await accept_request(responses, model=model, reasoning={"effort": "high"})
        assert refused.value.param == "reasoning.effort"
    else:
        accepted = await accept_request(responses, model=model, reasoning={"effort": "high"})
        assert accepted.ignored == ["reasoning.effort"]


async def test_chat_template_kwargs_override_the_effort() -> None:
    engine = TemplatedEngine("{{ messages[0].content }}{{ reasoning_effort }}")
    engine.says(Text("Yes."))
    await create_response(
        make_responses(engine), reasoning={"effort": "low"}, chat_template_kwargs={"reasoning_effort": "most"}
    )
    assert get_last_prompt(engine).endswith("most")


@pytest.mark.parametrize("level", ["chat", "text"])
@pytest.mark.shows("D.16")
async def test_streamed_and_final_log_probabilities_cover_the_text_only(level: str) -> None:
    engine = FakeEngine(FakeSettings(level=level, reads=ParserChoice(reasoning="qwen3", calls="hermes")))  # type: ignore[arg-type]  # parametrised
    chunks = [Chunk(text=token, logprobs=(_logprob(token),)) for token in _split_tokens(REPLY)]
    engine.says(*chunks)
    response = await create_response(make_responses(engine), tools=TOOLS, include=["message.output_text.logprobs"])
    engine.says(*chunks)
    events = await stream_events(make_responses(engine), tools=TOOLS, include=["message.output_text.logprobs"])
    assert _collect_final(response) == _collect_streamed(events)
    text, tokens = _collect_final(response)
    assert text == "Well.\n"
    assert text in "".join(tokens)
    assert len("".join(tokens)) < len(text) + 8


def _split_tokens(text: str) -> Iterator[str]:
    """Yield tokens of three characters each, which also split markers."""
    yield from [text[at : at + 3] for at in range(0, len(text), 3)]


def _logprob(token: str) -> Logprob:
    return Logprob(token=token, bytes=list(token.encode()), logprob=-1.0)


def _collect_final(response: Response) -> tuple[str, list[str]]:
    """Return the text of a response and the tokens of its log probabilities."""
    parts = [part for item in response.output if isinstance(item, Message) for part in item.content]
    texts = [part for part in parts if isinstance(part, OutputText)]
    return "".join([part.text for part in texts]), [one.token for part in texts for one in part.logprobs or ()]


def _collect_streamed(events: list[Event]) -> tuple[str, list[str]]:
    """Return the text of a stream and the tokens of its log probabilities."""
    deltas = [event for event in events if isinstance(event, OutputTextDelta)]
    return "".join([one.delta for one in deltas]), [token.token for one in deltas for token in one.logprobs]
