"""Streams for the tests of the core: deltas of any kind, and what an emitter makes of them."""

from collections.abc import Mapping, Sequence
from itertools import count

import msgspec
from hypothesis import strategies as st
from msgspec.structs import replace

from antiphon.core.deltas import (
    Break,
    CallDelta,
    CallDone,
    CallStarted,
    Citation,
    Delta,
    Opened,
    Put,
    Ran,
    Refusal,
    Said,
    Sealed,
    Stage,
    Summary,
    Text,
    Thought,
    Turned,
)
from antiphon.core.emitter.emitter import Emitter
from antiphon.core.emitter.event_log import Entry
from antiphon.core.emitter.fold import Ending, opening
from antiphon.core.emitter.tool_items import KINDS, shown
from antiphon.core.prompt import Counts
from antiphon.core.usage import usage
from antiphon.errors import AntiphonError, Busy, EngineFailed
from antiphon.ids import ItemIds, Prefix, new_id
from antiphon.limits import Limits
from antiphon.protocol.decoding.codec import decode_create
from antiphon.protocol.types.events import Event
from antiphon.protocol.types.items import Annotation, FileCitation, InputImage, InputText, McpCall, Phase, UrlCitation
from antiphon.protocol.types.response import Logprob, Response, TopLogprob
from antiphon.transport.streaming.sse import frames
from tests.core.emitter.tool_item_examples import CLIENTS, ENDS, PUT, mcp_call

ENDINGS = (
    Ending(status="completed"),
    Ending(status="incomplete", reason="max_output_tokens"),
    Ending(status="failed", error=EngineFailed("The engine died.")),
    Ending(status="cancelled"),
)
ANY_ENDING = (
    *ENDINGS,
    Ending(status="incomplete", reason="content_filter"),
    Ending(status="failed", error=Busy("Füll.", param="model", retry_after=2.5)),
    Ending(status="failed", error=AntiphonError("An error without a code.")),
)
LOGPROB = Logprob(token="a", bytes=[97], logprob=-0.5, top_logprobs=[TopLogprob(token="a", bytes=[97], logprob=-0.5)])


CITATIONS: tuple[Annotation, ...] = (
    UrlCitation(url="http://x", title="x", start_index=0, end_index=1),
    FileCitation(file_id="file_1", index=2),
)
# Requests as clients send them: the plainest, one for the background, and one that sets many fields.
BODIES: tuple[Mapping[str, object], ...] = (
    {"input": "hi"},
    {"input": "hi", "background": True, "previous_response_id": new_id("resp")},
    {
        "input": "hi",
        "instructions": "Be brief.",
        "metadata": {"a": "b\u2028"},
        "temperature": 1,
        "tools": [
            {"type": "function", "name": "f", "parameters": {"type": "object", "properties": {"x": {"minimum": 1.0}}}},
            {"type": "custom", "name": "run"},
        ],
        "tool_choice": {"type": "function", "name": "f"},
        "text": {"format": {"type": "json_schema", "name": "s", "schema": {"type": "object"}}},
        "reasoning": {"effort": "low"},
        "stop": ["x"],
        "chat_template_kwargs": {"deep": [1, 2.0, None, {"a": True}]},
        "conversation": "conv_" + new_id("conv")[5:],
    },
)
USAGE = usage([Counts(input_tokens=3, output_tokens=2)])


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
    return events + emitter.finish(ending, USAGE, 2)


def opened(body: Mapping[str, object] = BODIES[0]) -> Response:
    """The Response to a request as the service opens it."""
    decoded = decode_create(msgspec.json.encode(body), Limits())
    return opening(decoded.request, decoded.sent, new_id("resp"), "fake", 1_763_000_000, store=True)


def recording(response: Response, obfuscates: bool = False) -> Emitter:
    return Emitter(response, ItemIds(response.id), obfuscates, log=[])


def told(emitter: Emitter, lists: Sequence[Sequence[Delta]]) -> list[Event]:
    """From the beginning to before the end, as a turn feeds it: a list of nothing but text is said."""
    events = [*emitter.created(), *emitter.in_progress()]
    for deltas in lists:
        texts = [delta for delta in deltas if isinstance(delta, Text)]
        events += emitter.say(texts) if texts and len(texts) == len(deltas) else emitter.feed(deltas)
    return events


def entries_of(emitter: Emitter) -> list[Entry]:
    assert emitter.log is not None
    return [entry for entries in emitter.log for entry in entries]


def sent(events: list[Event]) -> bytes:
    return frames(events) if events else b""


def as_stored(response: Response) -> Response:
    """What comes back from the JSON that a store keeps."""
    return msgspec.json.decode(msgspec.json.encode(response), type=Response)


def taped_only(entries: list[Entry]) -> list[Entry]:
    """Without what a tape does not keep: it is in no event."""
    return [_taped(entry) for entry in entries]


def _taped(entry: Entry) -> Entry:
    match entry:
        case Opened(key=key, item=item):
            return Opened(key, shown(item))
        case Ran(key=key, item=item):
            return Ran(key, item)
        case Turned():
            return Turned()
    return entry


def types(events: list[Event]) -> list[str]:
    return [event.type for event in events]


SAID: tuple[Said, ...] = ("", "told", [InputText(text="told"), InputImage(image_url="data:image/png;base64,aGk=")])
_OVERLAP = CallStarted | CallDelta | CallDone | Break | Opened | Stage | Ran | Put
_KINDS = (
    "text", "thought", "summary", "sealed", "refusal", "cite", "break", "call", "custom", "more", "done",
    "mcp", "mcp", "open", "open", "stage", "ran", "ran", "put", "turned",
)  # fmt: skip


@st.composite
def any_deltas(draw: st.DrawFn) -> list[Delta]:
    """Any order of pieces, with calls and deeds of the server that overlap, but none that goes on before it began or
    after it ended."""
    text = st.text(max_size=5)
    deltas: list[Delta] = []
    open_calls: set[int] = set()
    served = _Served(draw)
    for _ in range(draw(st.integers(0, 25))):
        kind = draw(st.sampled_from(_KINDS))
        match kind:
            case "text":
                deltas.append(Text(draw(text), (LOGPROB,) * draw(st.sampled_from([0, 0, 1, 2]))))
            case "thought":
                deltas.append(Thought(draw(text)))
            case "summary":
                deltas.append(Summary(draw(text), draw(st.integers(0, 2))))
            case "sealed" if isinstance(deltas[-1] if deltas else None, Thought | Summary):
                ends: list[Delta] = [Break(), Text("x"), Refusal("x"), Turned(), Put(PUT[0])]
                deltas += [Sealed(draw(text)), draw(st.sampled_from(ends))]
            case "refusal":
                deltas.append(Refusal(draw(text)))
            case "cite":
                deltas.append(Citation(draw(st.sampled_from(CITATIONS))))
            case "break":
                phase: Phase | None = draw(st.sampled_from([None, "commentary", "final_answer"]))
                deltas.append(Break(phase, cut=draw(st.booleans())))
            case "call" | "custom":
                key, space = draw(st.integers(0, 3)), draw(st.sampled_from([None, "space"]))
                deltas.append(CallStarted(key, f"f{key}", "function" if kind == "call" else "custom", space))
                open_calls.add(key)
            case "more" if open_calls | served.speaking:
                key = draw(st.sampled_from(sorted(open_calls | served.speaking)))
                deltas.append(served.noted(CallDelta(key, draw(text))))
            case "done":  # perhaps of one that another item has closed
                key = draw(st.integers(0, 7))
                deltas.append(CallDone(key))
                open_calls.discard(key)
                served.speaking.discard(key)
            case "turned":
                deltas.append(Turned(draw(st.sampled_from([None, Counts(input_tokens=7, output_tokens=2)]))))
            case "mcp" | "open" | "stage" | "ran" | "put":
                deltas += served.deed(kind)
        if not isinstance(deltas[-1] if deltas else None, _OVERLAP):
            open_calls.clear()  # another kind of item closes them
            served.speaking.clear()
    return deltas


class _Served:
    """What the server does in such a stream, under the keys 4 to 7."""

    def __init__(self, draw: st.DrawFn) -> None:
        self._draw = draw
        self._open: dict[int, type] = {}
        self._said: dict[int, str] = {}  # by calls whose arguments are told piece by piece
        self._allowed: dict[int, str | None] = {}  # by which request
        self.speaking: set[int] = set()

    def noted(self, delta: CallDelta) -> CallDelta:
        if delta.key in self._said:
            self._said[delta.key] += delta.text
        return delta

    def deed(self, kind: str) -> list[Delta]:
        free = sorted({4, 5, 6, 7} - self._open.keys())
        match kind:
            case "put":
                return [Put(self._draw(st.sampled_from([*PUT, *CLIENTS])))]
            case "mcp" if free:
                return [self._start(self._draw(st.sampled_from(free)))]
            case "open" if free:
                return [self._opened(self._draw(st.sampled_from(free)))]
            case "stage" if self._open:
                words = st.sampled_from(["searching", "interpreting", "generating"])
                return [Stage(self._draw(st.sampled_from(sorted(self._open))), self._draw(words))]
            case "ran" if self._open:
                return [self._ran(self._draw(st.sampled_from(sorted(self._open))))]
        return []

    def _start(self, key: int) -> CallStarted:
        self._open[key], self._said[key] = McpCall, ""
        self.speaking.add(key)
        self._allowed[key] = self._draw(st.sampled_from((None, "mcpr_1")))
        return CallStarted(key, f"t{key}", "mcp", f"s{key}", self._allowed[key])

    def _opened(self, key: int) -> Opened:
        self._open[key] = kind = self._draw(st.sampled_from(sorted(KINDS, key=str)))
        self._said.pop(key, None)
        return Opened(key, self._draw(st.sampled_from(ENDS[kind])))

    def _ran(self, key: int) -> Ran:
        kind = self._open.pop(key)
        self.speaking.discard(key)
        item = self._draw(st.sampled_from(ENDS[kind]))
        if key in self._said:
            call = mcp_call(item, f"s{key}", f"t{key}", self._said.pop(key))
            item = replace(call, approval_request_id=self._allowed[key])
        return Ran(key, item, self._draw(st.sampled_from(SAID)))


@st.composite
def any_lists(draw: st.DrawFn) -> list[list[Delta]]:
    """Deltas as they come together."""
    deltas = draw(any_deltas())
    lists: list[list[Delta]] = [[]]
    for delta in deltas:
        if draw(st.booleans()):
            lists.append([])
        lists[-1].append(delta)
    return lists
