"""Event streams for the tests of the core: hypothesis strategies for deltas of any kind, and helpers that run an
emitter.
"""

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
    CommandDone,
    Delta,
    EncryptedReasoning,
    ItemAdded,
    Progress,
    ReasoningDelta,
    Refusal,
    ServerItem,
    ServerItemDone,
    ServerItemStarted,
    Summary,
    Text,
    ToolOutputContent,
    TurnEnded,
)
from antiphon.core.emitter.emitter import Emitter
from antiphon.core.emitter.event_log import LogEntry
from antiphon.core.emitter.fold import ResponseEnding, open_response
from antiphon.core.emitter.server_item_kinds import SERVER_ITEM_KINDS
from antiphon.core.emitter.tool_items import initial_view
from antiphon.core.prompt import TokenCounts
from antiphon.core.replay import pack, unpack
from antiphon.core.usage import usage_from_counts
from antiphon.errors import AntiphonError, Busy, EngineFailed
from antiphon.ids import ItemIds, Prefix, new_id
from antiphon.limits import Limits
from antiphon.protocol.decoding.codec import decode_create, encode
from antiphon.protocol.types.events import Event
from antiphon.protocol.types.items import CodeInterpreterCall, McpCall, Phase, ShellCall, ShellCallOutput
from antiphon.protocol.types.parts import (
    Annotation,
    FileCitation,
    InputImage,
    InputText,
    Logprob,
    TopLogprob,
    UrlCitation,
)
from antiphon.protocol.types.response import Response
from antiphon.transport.streaming.sse import encode_events
from tests.core.emitter.tool_item_examples import (
    ADDED_ITEMS,
    CLIENT_ITEMS,
    COMMAND_OUTPUTS,
    SERVER_ITEMS,
    get_start,
    make_mcp_call,
)

ENDINGS = (
    ResponseEnding(status="completed"),
    ResponseEnding(status="incomplete", reason="max_output_tokens"),
    ResponseEnding(status="failed", error=EngineFailed("The engine died.")),
    ResponseEnding(status="cancelled"),
)
ANY_ENDING = (
    *ENDINGS,
    ResponseEnding(status="incomplete", reason="content_filter"),
    ResponseEnding(status="failed", error=Busy("Füll.", param="model", retry_after=2.5)),
    ResponseEnding(status="failed", error=AntiphonError("An error without a code.")),
)
LOGPROB = Logprob(token="a", bytes=[97], logprob=-0.5, top_logprobs=[TopLogprob(token="a", bytes=[97], logprob=-0.5)])


CITATIONS: tuple[Annotation, ...] = (
    UrlCitation(url="http://x", title="x", start_index=0, end_index=1),
    FileCitation(file_id="file_1", index=2),
)
# Request bodies as clients send them: minimal, in the background, and with many fields set.
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
USAGE = usage_from_counts([TokenCounts(input_tokens=3, output_tokens=2)])


def make_emitter(include_obfuscation: bool = False) -> "Emitter":
    numbers = count()

    def new_id(prefix: Prefix) -> str:
        return f"{prefix}_{next(numbers)}"

    return Emitter(Response(id="resp_1", created_at=1, model="m"), new_id, include_obfuscation)


def emit_stream(
    deltas: list[Delta], ending: ResponseEnding = ENDINGS[0], emitter: Emitter | None = None
) -> list[Event]:
    emitter = emitter or make_emitter()
    events = [*emitter.emit_created(), *emitter.emit_in_progress()]
    for delta in deltas:
        events += emitter.feed([delta])
    return events + emitter.finish(ending, USAGE, 2)


def make_response(body: Mapping[str, object] = BODIES[0]) -> Response:
    """Open the Response to a request as the service does."""
    decoded = decode_create(msgspec.json.encode(body), Limits())
    return open_response(decoded.request, decoded.sent, new_id("resp"), "fake", 1_763_000_000, store=True)


def make_recording_emitter(response: Response, include_obfuscation: bool = False) -> Emitter:
    return Emitter(response, ItemIds(response.id), include_obfuscation, log=[])


def emit_unfinished(emitter: Emitter, lists: Sequence[Sequence[Delta]]) -> list[Event]:
    """Emit the start events and the lists of deltas, without the end.

    As in a turn, lists that hold only text go through `feed_text`.
    """
    events = [*emitter.emit_created(), *emitter.emit_in_progress()]
    for deltas in lists:
        texts = [delta for delta in deltas if isinstance(delta, Text)]
        events += emitter.feed_text(texts) if texts and len(texts) == len(deltas) else emitter.feed(deltas)
    return events


def get_log_entries(emitter: Emitter) -> list[LogEntry]:
    assert emitter.log is not None
    return [entry for entries in emitter.log for entry in entries]


def pack_log(emitter: Emitter) -> bytes:
    assert emitter.log is not None
    return pack(emitter.log, emitter.response, encode(emitter.response))


def repack_log(emitter: Emitter) -> list[LogEntry]:
    """Pack the log of the emitter as in a store, and unpack it again."""
    return unpack(pack_log(emitter), encode(emitter.response))


def encode_sse(events: list[Event]) -> bytes:
    return encode_events(events) if events else b""


def round_trip_json(response: Response) -> Response:
    """Encode the Response as stored JSON and decode it again."""
    return msgspec.json.decode(msgspec.json.encode(response), type=Response)


def drop_unpacked_fields(entries: list[LogEntry]) -> list[LogEntry]:
    """Drop what a packed log does not hold, since no event carries it."""
    return [_drop_unpacked(entry) for entry in entries]


def _drop_unpacked(entry: LogEntry) -> LogEntry:
    match entry:
        case ServerItemStarted(key=key, item=item):
            return entry if isinstance(item, ShellCall) else ServerItemStarted(key, initial_view(item))
        case ServerItemDone(key=key, item=ShellCallOutput() as item):  # the emitter knows its call and commands
            return ServerItemDone(key, replace(item, call_id="", max_output_length=None, output=[]))
        case ServerItemDone(key=key, item=item):
            return ServerItemDone(key, item)
        case TurnEnded():
            return TurnEnded()
    return entry


def event_types(events: list[Event]) -> list[str]:
    return [event.type for event in events]


TOOL_OUTPUTS: tuple[ToolOutputContent, ...] = (
    "",
    "told",
    [InputText(text="told"), InputImage(image_url="data:image/png;base64,aGk=")],
)
_OVERLAPPING = (
    CallStarted | CallDelta | CallDone | Break | ServerItemStarted | Progress | CommandDone | ServerItemDone | ItemAdded
)
_KINDS = (
    "text", "thought", "summary", "sealed", "refusal", "cite", "break", "call", "custom", "more", "done",
    "mcp", "mcp", "open", "open", "stage", "ran", "ran", "put", "turned",
)  # fmt: skip


@st.composite
def any_deltas(draw: st.DrawFn) -> list[Delta]:
    """Draw deltas in any order, with overlapping client calls and server items.

    No call or item continues before its start or after its end.
    """
    text = st.text(max_size=5)
    deltas: list[Delta] = []
    open_calls: set[int] = set()
    server_items = _ServerItemDeltas(draw)
    for _ in range(draw(st.integers(0, 25))):
        kind = draw(st.sampled_from(_KINDS))
        match kind:
            case "text":
                deltas.append(Text(draw(text), (LOGPROB,) * draw(st.sampled_from([0, 0, 1, 2]))))
            case "thought":
                deltas.append(ReasoningDelta(draw(text)))
            case "summary":
                deltas.append(Summary(draw(text), draw(st.integers(0, 2))))
            case "sealed" if isinstance(deltas[-1] if deltas else None, ReasoningDelta | Summary):
                ends: list[Delta] = [Break(), Text("x"), Refusal("x"), TurnEnded(), ItemAdded(ADDED_ITEMS[0])]
                deltas += [EncryptedReasoning(draw(text)), draw(st.sampled_from(ends))]
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
            case "more" if open_calls | server_items.streaming:
                key = draw(st.sampled_from(sorted(open_calls | server_items.streaming)))
                deltas.append(server_items.record(CallDelta(key, draw(text))))
            case "done":  # possibly of a call that another item has closed
                key = draw(st.integers(0, 7))
                deltas.append(CallDone(key))
                open_calls.discard(key)
                server_items.streaming.discard(key)
            case "turned":
                deltas.append(TurnEnded(draw(st.sampled_from([None, TokenCounts(input_tokens=7, output_tokens=2)]))))
            case "mcp" | "open" | "stage" | "ran" | "put":
                deltas += server_items.draw_deltas(kind)
        if not isinstance(deltas[-1] if deltas else None, _OVERLAPPING):
            open_calls.clear()  # any other kind of item closes open calls
            server_items.streaming.clear()
    return deltas


class _ServerItemDeltas:
    """Deltas of the server items in a drawn stream, under the keys 4 to 7."""

    def __init__(self, draw: st.DrawFn) -> None:
        self._draw = draw
        self._open: dict[int, type] = {}
        self._arguments: dict[int, str] = {}  # arguments of calls that stream them in pieces, by key
        self._approval_ids: dict[int, str | None] = {}  # id of the approval request, by key
        self._commands: dict[int, int] = {}  # number of commands of a shell call that have not ended, by key
        self.streaming: set[int] = set()

    def record(self, delta: CallDelta) -> CallDelta:
        if delta.key in self._arguments:
            self._arguments[delta.key] += delta.text
        return delta

    def draw_deltas(self, kind: str) -> list[Delta]:
        free = sorted({4, 5, 6, 7} - self._open.keys())
        match kind:
            case "put":
                return [ItemAdded(self._draw(st.sampled_from([*ADDED_ITEMS, *CLIENT_ITEMS])))]
            case "mcp" if free:
                return [self._start_call(self._draw(st.sampled_from(free)))]
            case "open" if free:
                return [self._start_item(self._draw(st.sampled_from(free)))]
            case "stage" if self._open:
                stages = st.sampled_from(["searching", "interpreting", "generating"])
                key = self._draw(st.sampled_from(sorted(self._open)))
                if self._open[key] is ShellCallOutput:
                    return self._end_command(key)
                return [Progress(key, self._draw(stages))]
            case "ran" if self._open:
                return [self._finish_item(self._draw(st.sampled_from(sorted(self._open))))]
        return []

    def _end_command(self, key: int) -> list[Delta]:
        if not self._commands[key]:
            return []
        self._commands[key] -= 1
        return [CommandDone(key, self._draw(st.sampled_from(COMMAND_OUTPUTS)))]

    def _start_call(self, key: int) -> CallStarted:
        self._arguments[key] = ""
        self.streaming.add(key)
        if self._draw(st.booleans()):
            self._open[key] = CodeInterpreterCall
            return CallStarted(key, "code_interpreter", "code_interpreter", f"s{key}", None, self._draw(st.booleans()))
        self._open[key] = McpCall
        self._approval_ids[key] = self._draw(st.sampled_from((None, "mcpr_1")))
        return CallStarted(key, f"t{key}", "mcp", f"s{key}", self._approval_ids[key])

    def _complete_call(self, item: ServerItem, key: int, arguments: str) -> ServerItem:
        if isinstance(item, CodeInterpreterCall):
            return replace(item, container_id=f"s{key}", code=arguments)
        call = make_mcp_call(item, f"s{key}", f"t{key}", arguments)
        return replace(call, approval_request_id=self._approval_ids[key])

    def _start_item(self, key: int) -> ServerItemStarted:
        self._open[key] = kind = self._draw(st.sampled_from(sorted(SERVER_ITEM_KINDS, key=str)))
        self._arguments.pop(key, None)
        item = get_start(self._draw(st.sampled_from(SERVER_ITEMS[kind])))
        self._commands[key] = len(item.action.commands) if isinstance(item, ShellCall) else 0
        return ServerItemStarted(key, item)

    def _finish_item(self, key: int) -> ServerItemDone:
        kind = self._open.pop(key)
        self.streaming.discard(key)
        item = self._draw(st.sampled_from(SERVER_ITEMS[kind]))
        if key in self._arguments:
            item = self._complete_call(item, key, self._arguments.pop(key))
        return ServerItemDone(key, item, self._draw(st.sampled_from(TOOL_OUTPUTS)))


@st.composite
def any_delta_lists(draw: st.DrawFn) -> list[list[Delta]]:
    """Draw deltas in the lists in which they arrive."""
    deltas = draw(any_deltas())
    lists: list[list[Delta]] = [[]]
    for delta in deltas:
        if draw(st.booleans()):
            lists.append([])
        lists[-1].append(delta)
    return lists
