"""`ReasoningSummariser`: each reasoning item gets a summary, and the output after it waits for that summary."""

import asyncio
from collections.abc import Awaitable, Iterable

import pytest

from antiphon.agent.reasoning_summaries import ReasoningSummariser
from antiphon.core.deltas import Break, CallDone, CallStarted, Delta, EncryptedReasoning, ReasoningDelta, Summary, Text
from antiphon.core.prompt import TokenCounts

pytestmark = pytest.mark.anyio
COUNTS = TokenCounts(input_tokens=2, output_tokens=1)


class Recorder:
    """The renderer and sink of a summariser: events are the deltas themselves. Summaries wait for `may_write`."""

    def __init__(self) -> None:
        self.written: list[Delta] = []
        self.may_write = asyncio.Event()
        self.summarised: list[str] = []
        self.late: list[Delta] = []  # the model writes these while a text is written to the sink
        self.summariser = ReasoningSummariser(self.summarise, self.render, self.sink)  # type: ignore[arg-type]  # deltas

    def render(self, deltas: Iterable[Delta]) -> list[Delta]:
        return [*deltas]

    def sink(self, deltas: list[Delta]) -> Awaitable[None]:
        self.written += deltas
        if self.late and Text("x") in deltas:
            assert self.summariser.feed(self.late) == []
        return asyncio.sleep(0)

    async def summarise(self, reasoning: str, emit: object) -> TokenCounts:
        self.summarised.append(reasoning)
        await self.may_write.wait()
        await emit(f"<{reasoning}>")  # type: ignore[operator]  # an EmitText
        return COUNTS

    async def feed(self, *deltas: Delta) -> None:
        if (events := self.summariser.feed(deltas)) and (pending := self.summariser.emit(events)) is not None:
            await pending


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


async def test_output_after_reasoning_waits_for_the_summary(recorder: Recorder) -> None:
    await recorder.feed(ReasoningDelta("a"), ReasoningDelta("b"))
    await recorder.feed(Text("x"))
    await recorder.feed(Text("y"))
    assert recorder.written == [ReasoningDelta("a"), ReasoningDelta("b")]
    recorder.may_write.set()
    await recorder.summariser.finish()
    assert recorder.written[2:] == [Summary("<ab>"), Text("x"), Text("y")]
    assert recorder.summariser.counts == [COUNTS]


async def test_output_passes_at_once_when_no_summary_is_due(recorder: Recorder) -> None:
    recorder.may_write.set()
    await recorder.feed(Text("x"))
    assert recorder.written == [Text("x")]
    await recorder.feed(ReasoningDelta("a"), Break())
    await recorder.summariser.finish()
    await recorder.feed(Text("y"))
    assert recorder.written[-1] == Text("y")


@pytest.mark.parametrize("apart", [False, True], ids=["together", "apart"])
async def test_each_reasoning_item_has_a_summary_before_its_encrypted_content(recorder: Recorder, apart: bool) -> None:
    deltas: list[Delta] = [
        ReasoningDelta("a"), EncryptedReasoning("!"), CallStarted(0, "f"), ReasoningDelta("b"), CallDone(0),
        ReasoningDelta("c"), Text("x"), ReasoningDelta("d"),
    ]  # fmt: skip
    for batch in [[delta] for delta in deltas] if apart else [deltas]:
        await recorder.feed(*batch)
    recorder.may_write.set()
    await recorder.summariser.finish()
    assert recorder.written == [
        ReasoningDelta("a"), Summary("<a>"), EncryptedReasoning("!"), CallStarted(0, "f"), ReasoningDelta("b"),
        CallDone(0), ReasoningDelta("c"), Summary("<bc>"), Text("x"), ReasoningDelta("d"), Summary("<d>"),
    ]  # fmt: skip


async def test_output_that_arrives_while_held_output_is_written_follows_it(recorder: Recorder) -> None:
    recorder.may_write.set()
    recorder.late = [Text("y"), ReasoningDelta("b"), Text("z")]
    await recorder.feed(ReasoningDelta("a"), Text("x"))
    await recorder.summariser.finish()
    assert recorder.written[1:] == [
        Summary("<a>"), Text("x"), Text("y"), ReasoningDelta("b"), Summary("<b>"), Text("z"),
    ]  # fmt: skip


async def test_closing_stops_a_summary(recorder: Recorder) -> None:
    await recorder.feed(ReasoningDelta("a"), Text("x"))
    await asyncio.sleep(0)
    assert recorder.summarised == ["a"]
    await recorder.summariser.close()
    recorder.may_write.set()
    await asyncio.sleep(0)
    assert recorder.written == [ReasoningDelta("a")]
