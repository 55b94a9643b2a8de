"""Streams for the tests of the core: deltas of any kind, and what an emitter makes of them."""

from itertools import count

from hypothesis import strategies as st

from antiphon.core.deltas import (
    CallDelta,
    CallDone,
    CallStarted,
    Citation,
    Delta,
    Refusal,
    Summary,
    Text,
    Thought,
)
from antiphon.core.emitter import Emitter
from antiphon.core.fold import Ending
from antiphon.core.prompt import Counts
from antiphon.core.usage import usage
from antiphon.errors import EngineFailed
from antiphon.ids import Prefix
from antiphon.protocol.events import Event
from antiphon.protocol.items import UrlCitation
from antiphon.protocol.response import Logprob, Response, TopLogprob

ENDINGS = (
    Ending(status="completed"),
    Ending(status="incomplete", reason="max_output_tokens"),
    Ending(status="failed", error=EngineFailed("The engine died.")),
    Ending(status="cancelled"),
)
LOGPROB = Logprob(token="a", bytes=[97], logprob=-0.5, top_logprobs=[TopLogprob(token="a", bytes=[97], logprob=-0.5)])


def numbered_ids(obfuscates: bool = False) -> "Emitter":
    numbers = count()

    def new_id(prefix: Prefix) -> str:
        return f"{prefix}_{next(numbers)}"

    return Emitter(Response(id="resp_1", created_at=1, model="m"), new_id, obfuscates)


def emitted(deltas: list[Delta], ending: Ending = ENDINGS[0], emitter: Emitter | None = None) -> list[Event]:
    emitter = emitter or numbered_ids()
    events = [*emitter.created(), *emitter.in_progress()]
    for delta in deltas:
        events += emitter.feed([delta])
    return events + emitter.finish(ending, usage([Counts(input_tokens=3, output_tokens=2)]), 2)


def types(events: list[Event]) -> list[str]:
    return [event.type for event in events]


@st.composite
def any_deltas(draw: st.DrawFn) -> list[Delta]:
    """Any order of pieces, with calls that overlap, but none that speaks before it started or after it ended."""
    text = st.text(max_size=5)
    deltas: list[Delta] = []
    open_calls: set[int] = set()
    for number in range(draw(st.integers(0, 25))):
        kind = draw(
            st.sampled_from(["text", "thought", "summary", "refusal", "cite", "call", "custom", "more", "done"])
        )
        match kind:
            case "text":
                deltas.append(Text(draw(text), (LOGPROB,) if draw(st.booleans()) else ()))
            case "thought":
                deltas.append(Thought(draw(text)))
            case "summary":
                deltas.append(Summary(draw(text), draw(st.integers(0, 2))))
            case "refusal":
                deltas.append(Refusal(draw(text)))
            case "cite":
                deltas.append(Citation(UrlCitation(url="http://x", title="x", start_index=0, end_index=1)))
            case "call" | "custom":
                deltas.append(CallStarted(number, "f", "function" if kind == "call" else "custom"))
                open_calls.add(number)
            case "more" | "done" if open_calls:
                key = draw(st.sampled_from(sorted(open_calls)))
                deltas.append(CallDelta(key, draw(text)) if kind == "more" else CallDone(key))
                open_calls -= {key} if kind == "done" else set()
        if not isinstance(deltas[-1] if deltas else None, CallStarted | CallDelta | CallDone):
            open_calls.clear()  # another kind of item closes them
    return deltas
