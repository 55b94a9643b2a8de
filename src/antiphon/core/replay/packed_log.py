"""A log without its words, for a response that has ended: the words stand in its terminal Response already.

All that was said in one kind of delta, one piece after the other, is what the output's items say in that kind, one item
after the other; so a tape has only the order of the pieces and their lengths, in characters. The pieces of a call are
cut from the call's own item, since calls may overlap. What the server did is its item; only one that began otherwise
than its end tells has its beginning on the tape.

    version ─ CRC-32 of the response's id and the rest ─ the rest: runs of pieces; what Ended says beyond the Response

Calls and what the server did, for a tape: taken from the terminal Response, one after the other as they began.

What began otherwise than its end tells has its beginning on the tape: a search whose page was found out on the way.
"""

import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate, pairwise
from operator import attrgetter
from typing import Annotated, Any, Generic, TypeVar, get_args
from zlib import crc32

import msgspec
from msgspec import UNSET, Meta, Struct
from msgspec.structs import replace

from antiphon.core.deltas import (
    Break,
    CallDelta,
    CallDone,
    CallStarted,
    Citation,
    Opened,
    Put,
    PutItem,
    Ran,
    Refusal,
    Sealed,
    ServerItem,
    Stage,
    Summary,
    Text,
    Thought,
    Turned,
)
from antiphon.core.emitter.event_log import Began, Ended, Entry, Fault, Spoken
from antiphon.core.emitter.tool_items import KINDS, is_clients, is_served, shown, unnamed
from antiphon.protocol.types.items import (
    Annotation,
    CustomToolCall,
    FunctionCall,
    McpCall,
    Message,
    OutputItem,
    Phase,
    Reasoning,
)
from antiphon.protocol.types.parts import OutputText, RefusalPart
from antiphon.protocol.types.response import Logprob, Response

Openings = dict[int, ServerItem]  # by their number among all that began
_BEGINNINGS = (CallStarted, Opened, Put)
_SAID = (Message, Reasoning)
_Whole = TypeVar("_Whole", str, tuple[Logprob, ...], tuple[Annotation, ...])


class UnreadableTape(Exception):
    """It is damaged, of another response or of another version: nobody may be told what it says."""


def misfit(what: str) -> UnreadableTape:
    return UnreadableTape(f"The tape does not fit the response: {what}.")


def openings(log: Iterable[Sequence[Any]], response: Response) -> Openings:
    """Those that cannot be told from how they ended."""
    for item in response.output:
        if type(item) in KINDS:
            break
    else:
        return {}
    items = _begun(response)
    began = [entry for part in log if type(part) is not Spoken for entry in part if type(entry) in _BEGINNINGS]
    numbers = [n for n in range(min(len(began), len(items))) if type(began[n]) is Opened]
    first = {n: shown(began[n].item) for n in numbers}
    return {n: item for n, item in first.items() if not (is_served(end := items[n]) and item == shown(end))}


class Cut(Generic[_Whole]):
    """Something whole that is given away piece by piece."""

    def __init__(self, whole: _Whole) -> None:
        self._whole: _Whole = whole
        self._at = 0

    def next(self, lengths: Iterable[int]) -> list[_Whole]:
        edges = [*accumulate(lengths, initial=self._at)]
        self._at = edges[-1]
        return [self._whole[start:end] for start, end in pairwise(edges)]

    @property
    def fits(self) -> bool:
        """Were the pieces together as long as the whole?"""
        return self._at == len(self._whole)


class TapedItems:
    def __init__(self, response: Response, openings: Mapping[int, ServerItem]) -> None:
        self._items = enumerate(_begun(response))
        self._openings = openings
        self._arguments: list[Cut[str]] = []
        self._calls: dict[int, Cut[str]] = {}
        self._served: dict[int, ServerItem] = {}

    @property
    def fit(self) -> bool:
        """Was all of every call told?"""
        return all(arguments.fits for arguments in self._arguments)

    def check_all_began(self) -> None:
        if next(self._items, None) is not None:
            raise misfit("it has more calls")

    def start(self, key: int) -> CallStarted:
        match self._next()[1]:
            case FunctionCall(name=name, arguments=text) as item:
                started = CallStarted(key, name, "function", item.namespace or None)
            case CustomToolCall(name=name, input=text) as item:
                started = CallStarted(key, name, "custom", item.namespace or None)
            case McpCall(name=name, arguments=text) as item:
                started = CallStarted(key, name, "mcp", item.server_label, item.approval_request_id)
                self._served[key] = item
            case _:
                raise misfit("something else than a call")
        self._calls[key] = arguments = Cut(text)
        self._arguments.append(arguments)
        return started

    def pieces(self, key: int, lengths: Iterable[int]) -> list[str]:
        if key not in self._calls:
            raise misfit(f"no call has the key {key}")
        return self._calls[key].next(lengths)

    def opened(self, key: int) -> Opened:
        number, item = self._next()
        if not is_served(item):
            raise misfit("something that the server did not do")
        self._served[key] = item
        return Opened(key, self._openings.get(number, replace(item, id=UNSET)))

    def ran(self, key: int) -> Ran:
        if key not in self._served:
            raise misfit(f"nothing ran under the key {key}")
        return Ran(key, replace(self._served[key], id=UNSET))

    def put(self) -> Put:
        item = self._next()[1]
        if not isinstance(item, PutItem):
            raise misfit("something that was not put there")
        put = replace(item, id=UNSET)
        return Put(unnamed(put) if is_clients(put) else put)

    def _next(self) -> tuple[int, OutputItem]:
        found = next(self._items, None)
        if found is None:
            raise misfit("it has fewer calls")
        return found


def _begun(response: Response) -> list[OutputItem]:
    """All that is begun by a word of its own; messages and reasoning are begun by what they say."""
    return [item for item in response.output if type(item) not in _SAID]


__all__ = ["VERSION", "UnreadableTape", "pack", "unpack"]

# Of the tape's form and of the emitter together: it changes when other events would come of the same log.
VERSION = 1

_HEAD = struct.Struct(">BI")  # the version and the sum
_Lengths = list[Annotated[int, Meta(ge=0)]]
_PHASES: tuple[Phase | None, ...] = (None, "commentary", "final_answer")
_BREAKS = [Break(phase, cut) for cut in (False, True) for phase in _PHASES]  # a Break's key is its place here
_WORDS = (
    "searching",
    "interpreting",
    "generating",
    "progress",
)  # the place of a Stage's word is its length; new ones come last


class _Run(Struct, frozen=True, array_like=True):
    """Pieces of one kind in a row; `kind` is their tag, `key` the call or the paragraph that they belong to."""

    kind: str
    lengths: _Lengths
    key: int = 0
    logprobs: _Lengths = []  # how many each piece has; nothing if none has any


_Packed = tuple[str, _Lengths, int, _Lengths]  # a run to be written: a tuple is made sooner, and is the same on a tape


class _Fault(Struct, frozen=True, array_like=True):
    code: str | None
    param: str | None
    retry_after: float | None


class _Tape(Struct, frozen=True, array_like=True):
    runs: list[_Run]
    at: int
    fault: _Fault | None
    openings: Openings = {}


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(_Tape)


def pack(log: Sequence[Sequence[Entry]], response: Response) -> bytes:
    """`log` is all there is of it, `Ended` included; `response` is the terminal one."""
    ended = log[-1][-1]
    assert type(ended) is Ended
    fault = ended.fault
    more = None if fault is None else _Fault(fault.code, fault.param, fault.retry_after)
    rest = _encoder.encode((_runs(log), ended.at, more, openings(log, response)))  # a _Tape
    return _head(rest, response) + rest


def unpack(tape: bytes, response: Response) -> list[Entry]:
    if tape[:1] != bytes((VERSION,)):
        raise UnreadableTape(f"The tape is of another version than {VERSION}.")
    rest = tape[_HEAD.size :]
    if tape[: _HEAD.size] != _head(rest, response):
        raise UnreadableTape("The tape is damaged or belongs to another response.")
    try:
        read = _decoder.decode(rest)
    except msgspec.DecodeError as error:
        raise UnreadableTape(f"The tape is damaged: {error}") from None
    said = _Said(response, read.openings)
    entries = [entry for run in read.runs for entry in said.again(run)]
    said.check_told()
    return [*entries, _ended(read, response)]


def _head(rest: bytes, response: Response) -> bytes:
    return _HEAD.pack(VERSION, crc32(response.id.encode() + rest))


def _ended(tape: _Tape, response: Response) -> Ended:
    details = response.incomplete_details
    return Ended(
        status=response.status,
        reason=details.reason if details else None,
        fault=_fault(tape, response),
        usage=response.usage,
        at=tape.at,
        silent=response.status == "completed" and not response.output,
    )


def _fault(tape: _Tape, response: Response) -> Fault | None:
    error, more = response.error, tape.fault
    if error is None and more is None:
        return None
    if error is None or more is None:
        raise misfit("one of them failed")
    return Fault(type=error.type, code=more.code, message=error.message, param=more.param, retry_after=more.retry_after)


# ---- what was said → runs

_TAGS: dict[type, str] = {kind: str(kind.__struct_config__.tag) for kind in get_args(Entry)}
_TEXT = _TAGS[Text]
_BEGAN: _Packed = (_TAGS[Began], [], 0, [])  # every tape has one
_KEYS: dict[type, Callable[[Any], int]] = {
    Thought: lambda delta: 0,
    Sealed: lambda delta: 0,
    Refusal: lambda delta: 0,
    Summary: attrgetter("part"),
    CallDelta: attrgetter("key"),
}


def _runs(log: Iterable[Sequence[Any]]) -> list[_Packed]:
    """A piece joins those right before it that are of its kind and have its key."""
    runs: list[_Packed] = []
    last, at = None, 0  # the kind of what came before, and the key of the last piece
    lengths: _Lengths = []
    logprobs: _Lengths = []
    for part in log:
        entries: Sequence[Any] = (part,) if type(part) is Spoken else part
        for entry in entries:
            kind = type(entry)
            if kind is Text:
                if last is not Text:
                    runs.append((_TEXT, lengths := [], 0, logprobs := []))
                if logprobs or entry.logprobs:
                    logprobs += [0] * (len(lengths) - len(logprobs))  # those before the first that has any
                    logprobs.append(len(entry.logprobs))
                lengths.append(len(entry.text))
            elif kind is Began:
                runs.append(_BEGAN)
            elif kind in _KEYS:
                key = _KEYS[kind](entry)
                if kind is not last or key != at:
                    runs.append((_TAGS[kind], lengths := [], at := key, []))
                lengths.append(len(entry.text))
            elif kind is not Ended:
                runs += _alone(entry)
            last = kind
    return runs


def _alone(entry: Any) -> list[_Packed]:
    """What is a run of its own; nothing is kept of a stage that nobody would know."""
    match entry:
        case Spoken(kind=kind, lengths=lengths):
            return [(_TAGS[kind], lengths.tolist(), 0, [])]
        case Stage(key=key, word=word):
            return [(_TAGS[Stage], [_WORDS.index(word)], key, [])] if word in _WORDS else []
        case Break():
            return [(_TAGS[Break], [], _BREAKS.index(entry), [])]
    return [(_TAGS[type(entry)], [], getattr(entry, "key", 0), [])]


# ---- runs → what was said


class _Said:
    """All that a Response's items say, by the kind of delta that it was said in."""

    def __init__(self, response: Response, openings: Openings) -> None:
        output = response.output
        parts = [part for item in output if isinstance(item, Message) for part in item.content]
        texts = [part for part in parts if isinstance(part, OutputText)]
        thoughts = [item for item in output if isinstance(item, Reasoning)]
        self.texts = Cut("".join([part.text for part in texts]))
        self.logprobs = Cut(tuple([one for part in texts for one in part.logprobs]))
        self.annotations = Cut(tuple([one for part in texts for one in part.annotations]))
        self.refusals = Cut("".join([part.refusal for part in parts if isinstance(part, RefusalPart)]))
        self.thoughts = Cut("".join([part.text for item in thoughts for part in item.content or ()]))
        self.summaries = Cut("".join([part.text for item in thoughts for part in item.summary]))
        self.sealed = Cut("".join([item.encrypted_content or "" for item in thoughts]))
        self.items = TapedItems(response, openings)

    def again(self, run: _Run) -> list[Entry]:
        if run.kind not in _AGAIN:
            raise misfit(f"nothing is said in {run.kind!r}")
        return _AGAIN[run.kind](self, run)

    def check_told(self) -> None:
        words = (self.texts, self.refusals, self.thoughts, self.summaries, self.sealed)
        fit = all(cut.fits for cut in words) and self.logprobs.fits and self.annotations.fits
        if not (fit and self.items.fit):
            raise misfit("they differ in length")
        self.items.check_all_began()


def _texts(said: _Said, run: _Run) -> list[Entry]:
    texts = said.texts.next(run.lengths)
    if not run.logprobs:
        return [Text(text) for text in texts]
    if len(run.logprobs) != len(texts):
        raise misfit("pieces without log probabilities")
    return [*map(Text, texts, said.logprobs.next(run.logprobs))]


def _break(said: _Said, run: _Run) -> list[Entry]:
    if not 0 <= run.key < len(_BREAKS):
        raise misfit("a phase that nobody knows")
    return [_BREAKS[run.key]]


def _stage(said: _Said, run: _Run) -> list[Entry]:
    if not all(place < len(_WORDS) for place in run.lengths):
        raise misfit("a stage that nobody knows")
    return [Stage(run.key, _WORDS[place]) for place in run.lengths]


_AGAIN: dict[str, Callable[[_Said, _Run], list[Entry]]] = {
    _TAGS[Began]: lambda said, run: [Began()],
    _TAGS[Text]: _texts,
    _TAGS[Thought]: lambda said, run: [*map(Thought, said.thoughts.next(run.lengths))],
    _TAGS[Summary]: lambda said, run: [Summary(text, run.key) for text in said.summaries.next(run.lengths)],
    _TAGS[Sealed]: lambda said, run: [*map(Sealed, said.sealed.next(run.lengths))],
    _TAGS[Refusal]: lambda said, run: [*map(Refusal, said.refusals.next(run.lengths))],
    _TAGS[Break]: _break,
    _TAGS[Citation]: lambda said, run: [Citation(one) for few in said.annotations.next([1]) for one in few],
    _TAGS[CallStarted]: lambda said, run: [said.items.start(run.key)],
    _TAGS[CallDelta]: lambda said, run: [CallDelta(run.key, text) for text in said.items.pieces(run.key, run.lengths)],
    _TAGS[CallDone]: lambda said, run: [CallDone(run.key)],
    _TAGS[Opened]: lambda said, run: [said.items.opened(run.key)],
    _TAGS[Stage]: _stage,
    _TAGS[Ran]: lambda said, run: [said.items.ran(run.key)],
    _TAGS[Put]: lambda said, run: [said.items.put()],
    _TAGS[Turned]: lambda said, run: [Turned()],
}
