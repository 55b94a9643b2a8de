"""What models say is read as their family writes it, in streams and at once; and efforts are told in their words."""

from collections.abc import Iterator

import pytest
from msgspec.structs import replace

from antiphon.core.deltas import Text
from antiphon.core.prompt import Chunk, Reads, Template, TextPrompt
from antiphon.engines.base import Capabilities
from antiphon.engines.fake import FakeEngine, FakeSettings
from antiphon.protocol.types.events import Event, OutputTextDelta
from antiphon.protocol.types.items import FunctionCall, Message, OutputItem, OutputText, Reasoning
from antiphon.protocol.types.response import Logprob, Response
from tests.service.requests import answered, service, streamed, text_of

pytestmark = pytest.mark.anyio
TOOLS = [{"type": "function", "name": "f", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}}]
CALL = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'
SAID = f"<think>\nhm\n</think>\n\nWell.\n{CALL}"


class Templated(FakeEngine):
    """Of a model with a template of its own."""

    def __init__(self, source: str, reads: Reads | None = None) -> None:
        super().__init__(FakeSettings(level="text", reads=reads or Reads()))
        self._source = source

    async def capabilities(self, model: str) -> Capabilities:
        able = await super().capabilities(model)
        return replace(able, template=Template(source=self._source), honours=able.honours - {"reasoning.effort"})


def kinds(response: Response) -> list[type[OutputItem]]:
    return [type(item) for item in response.output]


def last_prompt(engine: FakeEngine) -> str:
    prompt = engine.seen[-1].prompt
    assert isinstance(prompt, TextPrompt)
    return "".join([segment.text for segment in prompt.segments])


@pytest.mark.parametrize(
    ("reads", "expected"),
    [
        (Reads(thoughts="qwen3", calls="hermes"), [Reasoning, Message, FunctionCall]),
        (Reads(thoughts="qwen3"), [Reasoning, Message]),
        (Reads(calls="hermes"), [Message, FunctionCall]),
        (Reads(), [Message]),
    ],
)
@pytest.mark.shows("D.8", "D4.11")
async def test_an_engine_that_parses_is_trusted_unless_the_operator_says_otherwise(
    reads: Reads, expected: list[type[OutputItem]]
) -> None:
    engine = FakeEngine(FakeSettings(reads=reads))
    engine.says(*[Text(char) for char in SAID])
    assert kinds(await answered(service(engine), tools=TOOLS)) == expected


async def test_an_engine_whose_prompt_is_not_seen_may_begin_within_a_thought() -> None:
    engine = FakeEngine(FakeSettings(reads=Reads(thoughts="deepseek_r1")))
    engine.says(Text("hm\n</think>\n\nYes."))
    assert kinds(await answered(service(engine))) == [Reasoning, Message]
    engine.says(Text("Yes."))
    response = await answered(service(engine), reasoning={"effort": "none"})
    assert (kinds(response), text_of(response)) == ([Message], "Yes.")


async def test_an_engine_that_does_split_thoughts_off_is_believed() -> None:
    engine = FakeEngine(FakeSettings(reads=Reads(thoughts="qwen3", calls="hermes")))
    engine.says(Chunk(thought="hm"), Text("Yes.\n"), Text(CALL))
    response = await answered(service(engine), tools=TOOLS)
    assert kinds(response) == [Reasoning, Message, FunctionCall]


async def test_a_thought_that_is_cut_off_is_all_that_an_incomplete_response_has() -> None:
    engine = FakeEngine(FakeSettings(level="text"))
    engine.says(Text("<think>\nI wonder wh</thi"), finish="length")
    response = await answered(service(engine), tools=TOOLS)
    assert (response.status, kinds(response)) == ("incomplete", [Reasoning])
    (thought,) = response.output
    assert isinstance(thought, Reasoning)
    assert (thought.status, [part.text for part in thought.content or ()]) == ("incomplete", ["I wonder wh</thi"])


async def test_calls_are_not_looked_for_where_no_tools_are_offered() -> None:
    engine = FakeEngine(FakeSettings(level="text"))
    engine.says(Text(CALL))
    response = await answered(service(engine))
    assert (kinds(response), text_of(response)) == ([Message], CALL)


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
async def test_an_effort_is_told_in_the_words_of_the_template(source: str, effort: str, end: str) -> None:
    engine = Templated(source)
    engine.says(Text("Yes."))
    response = await answered(service(engine), reasoning={"effort": effort})
    assert last_prompt(engine).endswith(end)
    assert text_of(response) == "Yes."


async def test_a_client_says_more_of_a_template_than_the_effort_does() -> None:
    engine = Templated("{{ messages[0].content }}{{ reasoning_effort }}")
    engine.says(Text("Yes."))
    await answered(service(engine), reasoning={"effort": "low"}, chat_template_kwargs={"reasoning_effort": "most"})
    assert last_prompt(engine).endswith("most")


@pytest.mark.parametrize("level", ["chat", "text"])
@pytest.mark.shows("D.16")
async def test_log_probabilities_are_those_of_the_text_in_a_stream_and_at_once(level: str) -> None:
    engine = FakeEngine(FakeSettings(level=level, reads=Reads(thoughts="qwen3", calls="hermes")))  # type: ignore[arg-type]  # parametrised
    said = [Chunk(text=token, logprobs=(_logprob(token),)) for token in _tokens(SAID)]
    engine.says(*said)
    whole = await answered(service(engine), tools=TOOLS, include=["message.output_text.logprobs"])
    engine.says(*said)
    events = await streamed(service(engine), tools=TOOLS, include=["message.output_text.logprobs"])
    assert _told(whole) == _streamed(events)
    text, kept = _told(whole)
    assert text == "Well.\n"
    assert text in "".join(kept)
    assert len("".join(kept)) < len(text) + 8


def _tokens(text: str) -> Iterator[str]:
    """Of three characters each, with no regard for marks."""
    yield from [text[at : at + 3] for at in range(0, len(text), 3)]


def _logprob(token: str) -> Logprob:
    return Logprob(token=token, bytes=list(token.encode()), logprob=-1.0)


def _told(response: Response) -> tuple[str, list[str]]:
    parts = [part for item in response.output if isinstance(item, Message) for part in item.content]
    texts = [part for part in parts if isinstance(part, OutputText)]
    return "".join([part.text for part in texts]), [one.token for part in texts for one in part.logprobs or ()]


def _streamed(events: list[Event]) -> tuple[str, list[str]]:
    deltas = [event for event in events if isinstance(event, OutputTextDelta)]
    return "".join([one.delta for one in deltas]), [token.token for one in deltas for token in one.logprobs]
