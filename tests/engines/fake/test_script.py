"""Scripts of the fake engine: the steps that they play, the choice of a reply, and errors in the TOML."""

import asyncio
import re
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from antiphon.core.prompt import CallPiece, Chunk, TokenCounts
from antiphon.engines.fake import FakeEngine, FakeSettings
from antiphon.engines.fake.script import load_script
from antiphon.errors import ContextTooLong, EngineFailed, StartupError, Unavailable
from tests.engines.fake.generation import TIME, chat_prompt, make_request, run_generation, tool_message, user_message
from tests.support.paths import DOCS

pytestmark = pytest.mark.anyio


@pytest.fixture
def script(tmp_path: Path) -> Path:
    return tmp_path / "script.toml"


async def open_engine(script: Path, text: str) -> FakeEngine:
    engine = FakeEngine(FakeSettings(script=write_script(script, text)))
    await engine.open()
    return engine


def write_script(script: Path, text: str) -> Path:
    script.write_text(text, encoding="utf-8")
    return script


@pytest.mark.shows("C.13")
async def test_exact_chunks_are_played(script: Path) -> None:
    engine = await open_engine(
        script,
        """
        [[reply]]
        steps = [
            { think = ["h", "m"] },
            { say = ["Hel", "lo"] },
            { say = ["a", "b"], together = true },
            { say = "!", repeat = 2 },
            { say = ["x", "y"], repeat = 2 },
            { refuse = "no" },
            { chunk = { text = "r", tokens = [1, 2], logprobs = [{ token = "r", bytes = [114], logprob = -0.5 }] } },
        ]
        """,
    )
    result = await run_generation(engine, "hi")
    texts = [[chunk.reasoning or chunk.text or chunk.refusal for chunk in chunks] for chunks in result.lists[:-1]]
    assert texts == [
        ["h"], ["m"], ["Hel"], ["lo"], ["a", "b"], ["!"], ["!"], ["x"], ["y"], ["x"], ["y"], ["no"], ["r"],
    ]  # fmt: skip
    assert result.chunks[-2].tokens == (1, 2)
    assert result.chunks[-2].logprobs[0].logprob == -0.5
    assert result.finish == "stop"


async def test_calls_are_split_and_interleaved(script: Path) -> None:
    engine = await open_engine(
        script,
        """
        [[reply]]
        steps = [
            { call = { name = "f", arguments = '{"a":1}', chunks = 3 } },
            { calls = [{ name = "g", arguments = ["{", "}"] }, { name = "h", arguments = { b = 2 } }] },
        ]
        """,
    )
    result = await run_generation(engine, "hi")
    assert result.calls == {0: ("f", '{"a":1}'), 1: ("g", "{}"), 2: ("h", '{"b":2}')}
    assert [chunk.calls[0].index for chunk in result.chunks[:-1]] == [0, 0, 0, 0, 1, 2, 1, 2, 1]
    assert result.finish == "tool_calls"


async def test_a_reply_is_chosen_by_the_number_of_the_request(script: Path) -> None:
    engine = await open_engine(
        script,
        """
        [[reply]]
        request = 2
        times = 2
        steps = [{ say = "second and third" }]

        [[reply]]
        request = 5
        times = 0
        steps = [{ say = "from the fifth on" }]
        """,
    )
    assert [(await run_generation(engine, "hi")).text for _ in range(7)] == [
        "You said: hi", "second and third", "second and third", "You said: hi", *["from the fifth on"] * 3,
    ]  # fmt: skip


async def test_a_reply_is_chosen_by_the_content_of_the_request(script: Path) -> None:
    engine = await open_engine(
        script,
        """
        [[reply]]
        when = { contains = "weather", tool = "get_time" }
        steps = [{ say = "tool" }]

        [[reply]]
        when = { output = "sunny" }
        steps = [{ say = "output" }]

        [[reply]]
        when = { contains = "weather" }
        times = 1
        steps = [{ say = "weather" }]

        [[reply]]
        when = { model = "other" }
        steps = [{ say = "model" }]

        [[reply]]
        when = { prompt = "long ago" }
        steps = [{ say = "prompt" }]
        """,
    )
    assert (await run_generation(engine, chat_prompt("weather?", tools=(TIME,)))).text == "tool"
    assert (await run_generation(engine, chat_prompt(user_message("long ago"), user_message("now")))).text == "prompt"
    assert (await run_generation(engine, chat_prompt(user_message("?"), tool_message("it is sunny")))).text == "output"
    assert (await run_generation(engine, "weather?")).text == "weather"
    assert (await run_generation(engine, "weather?")).text == "You said: weather?"
    assert (await run_generation(engine, make_request("hi", model="other"))).text == "model"


async def test_replies_set_in_python_precede_the_script(script: Path) -> None:
    engine = await open_engine(script, "[[reply]]\nsteps = [{ say = 'script' }]")
    engine.answers()
    assert [(await run_generation(engine, "hi")).text for _ in range(2)] == ["You said: hi", "script"]


async def test_a_script_sets_the_finish_reason_and_the_usage(script: Path) -> None:
    engine = await open_engine(
        script,
        """
        [[reply]]
        request = 1
        finish = "content_filter"
        usage = { input_tokens = 3, output_tokens = 4 }
        steps = [{ say = "a" }]

        [[reply]]
        request = 2
        finish = "none"
        steps = [{ say = "a" }]

        [[reply]]
        request = 3
        finish = "bananas"
        """,
    )
    result = await run_generation(engine, "hi")
    assert result.finish == "content_filter"
    assert (result.counts.input_tokens, result.counts.output_tokens) == (3, 4)
    assert [chunk.text for chunk in (await run_generation(engine, "hi")).chunks] == ["a"]
    assert str((await run_generation(engine, "hi")).finish) == "bananas"


async def test_the_automatic_answer_can_be_a_step(script: Path) -> None:
    engine = await open_engine(script, "[[reply]]\nsteps = [{ delay = 0.001 }, { answer = true }, { say = '!' }]")
    result = await run_generation(engine, chat_prompt("hi", tools=(TIME,)))
    assert (result.calls, result.text, result.finish) == ({0: ("get_time", "{}")}, "!", "tool_calls")
    assert result.counts.output_tokens == 3


@pytest.mark.parametrize(
    ("fields", "raised"),
    [
        ("message = 'boom'", EngineFailed),
        ("message = 'boom', kind = 'engine'", EngineFailed),
        ("message = 'boom', kind = 'unavailable', retry_after = 2.5", Unavailable),
        ("message = 'boom', kind = 'context'", ContextTooLong),
        ("message = 'boom', kind = 'crash'", RuntimeError),
    ],
)
@pytest.mark.shows("C.13")
async def test_errors_are_raised_mid_stream_on_every_request(
    script: Path, fields: str, raised: type[Exception]
) -> None:
    engine = await open_engine(script, f"[[reply]]\nsteps = [{{ say = 'a' }}, {{ error = {{ {fields} }} }}]")
    for _ in range(2):
        async with asyncio.timeout(30), aclosing(engine.generate(make_request("hi"))) as lists:
            assert (await anext(lists))[0].text == "a"
            with pytest.raises(raised, match="boom") as caught:
                await anext(lists)
    if isinstance(caught.value, Unavailable):
        assert caught.value.retry_after == 2.5


async def test_a_silence_step_lasts_until_the_request_is_cancelled(script: Path) -> None:
    engine = await open_engine(script, "[[reply]]\nsteps = [{ say = 'a' }, { silence = true }, { say = 'b' }]")
    async with asyncio.timeout(30):
        lists = engine.generate(make_request("hi"))
        await anext(lists)
        waiting = asyncio.ensure_future(anext(lists))
        await asyncio.wait([waiting], timeout=0.01)
        assert not waiting.done()
        waiting.cancel()
        await asyncio.wait([waiting])
    assert (engine.running, engine.cancelled) == (0, 1)


@pytest.mark.shows("C.13")
async def test_a_delay_step_waits(script: Path) -> None:
    engine = await open_engine(script, "[[reply]]\nsteps = [{ delay = 0.02 }, { say = 'a' }]")
    loop = asyncio.get_running_loop()
    started = loop.time()
    await run_generation(engine, "hi")
    assert loop.time() - started >= 0.019


async def test_a_call_fragment_without_a_name_can_be_played(script: Path) -> None:
    engine = await open_engine(script, "[[reply]]\nsteps = [{ chunk = { calls = [{ index = 3, arguments = '}' }] } }]")
    (chunk, _) = (await run_generation(engine, "hi")).chunks
    assert isinstance(chunk, Chunk)
    assert isinstance(chunk.calls[0], CallPiece)
    assert (chunk.calls[0].index, chunk.calls[0].name) == (3, "")


async def test_counts_are_derived_from_the_script(script: Path) -> None:
    engine = await open_engine(script, "[[reply]]\nsteps = [{ think = 'a' }, { say = 'sixteen letters.' }]")
    prompt = chat_prompt("hi")
    counts = (await run_generation(engine, prompt)).counts
    assert counts == TokenCounts(
        input_tokens=await engine.count_tokens("any", prompt), output_tokens=5, reasoning_tokens=1
    )


@pytest.mark.parametrize(
    ("text", "fragment"),
    [
        ("[[reply]", "is not valid TOML"),
        ("x = 1", "may contain [[reply]] tables only, not x"),
        ("[reply]\nsteps = []", "may contain [[reply]] tables only"),
        ("[[reply]]\nstep = []", "reply 1: object contains unknown field `step`"),
        ("[[reply]]\n[[reply]]\nrequest = 0", "reply 2, request: expected `int` >= 1"),
        ("[[reply]]\nrequest = 'one'", "reply 1, request: expected `int | null`, got `str`"),
        ("[[reply]]\nwhen = { contain = 'x' }", "reply 1, when: object contains unknown field `contain`"),
        ("[[reply]]\nsteps = [{ say = 1 }]", "reply 1, steps[0].say: expected `str | array | null`, got `int`"),
        ("[[reply]]\nsteps = [{ say = 'a' }, { delay = -1 }]", "reply 1, steps[1].delay: expected `float` >= 0.0"),
        ("[[reply]]\nsteps = [{ error = { kind = 'x' } }]", "reply 1, steps[0].error"),
        ("[[reply]]\nsteps = [{}]", "reply 1, steps[0]: one of say, think,"),
        ("[[reply]]\nsteps = [{ say = 'a', think = 'b' }]", "is needed, not say and think"),
        ("[[reply]]\nsteps = [{ chunk = { txt = 'a' } }]", "steps[0].chunk: object contains unknown field `txt`"),
        ("[[reply]]\nsteps = [{ call = { arguments = '{}' } }]", "steps[0].call: object missing required field `name`"),
        ("[[reply]]\nusage = { tokens = 1 }", "reply 1, usage: object contains unknown field `tokens`"),
    ],
)
async def test_an_invalid_script_is_reported_with_its_position(script: Path, text: str, fragment: str) -> None:
    with pytest.raises(StartupError) as caught:
        await open_engine(script, text)
    message = str(caught.value)
    assert str(script) in message
    assert fragment in message
    assert "\n" not in message
    assert message.endswith(".")


async def test_a_missing_or_binary_script_is_reported(tmp_path: Path) -> None:
    with pytest.raises(StartupError, match="cannot be read: No such file"):
        await FakeEngine(FakeSettings(script=tmp_path / "none.toml")).open()
    (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(StartupError, match="is not valid TOML"):
        await FakeEngine(FakeSettings(script=tmp_path / "bytes.toml")).open()


PAGE = DOCS / "fake-engine.md"


def test_the_scripts_in_the_documentation_are_valid(script: Path) -> None:
    examples = re.findall(r"```toml\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert len(examples) >= 2
    for example in examples:
        load_script(write_script(script, example))


async def test_the_python_in_the_documentation_runs() -> None:
    (example,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    names: dict[str, Any] = {}
    exec(compile(example, str(PAGE), "exec"), names)  # noqa: S102  # our own documentation
    engine: FakeEngine = names["engine"]
    names["gate"].open()
    assert [(await run_generation(engine, "hi")).finish for _ in range(4)] == [
        "stop",
        "length",
        "tool_calls",
        "tool_calls",
    ]
    with pytest.raises(EngineFailed, match="It died"):
        await run_generation(engine, "hi")
