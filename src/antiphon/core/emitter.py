"""Deltas → events: indexes, ids, numbers, and an end for every beginning. Ids and time are handed in.

    created ─▶ in_progress ─▶ feed* ─▶ finish

At most one message or reasoning item is open; calls may overlap one another. `finish` closes what is open
and gives exactly one terminal event, the last one ever.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import assert_never

from msgspec import UNSET

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
from antiphon.core.fold import ADDING, Ending, apply, closing
from antiphon.core.obfuscation import obfuscate
from antiphon.core.open_items import OpenCall, OpenMessage, OpenReasoning, Status
from antiphon.core.open_parts import OpenText, Out
from antiphon.errors import AntiphonError
from antiphon.ids import Prefix
from antiphon.protocol import events as ev
from antiphon.protocol.response import Response, Usage

NewId = Callable[[Prefix], str]


class Emitter:
    """The one who turns what a model did into what a client is told."""

    def __init__(self, response: Response, new_id: NewId, obfuscates: bool = False) -> None:
        self.response = response
        self._new_id = new_id
        self._obfuscates = obfuscates
        self._number = 0
        self._items = 0
        self._open: OpenMessage | OpenReasoning | None = None
        self._text: OpenText | None = None  # the part that the next piece of text most likely belongs to
        self._calls: dict[int, OpenCall] = {}

    def created(self) -> Out:
        return self._sealed([ev.Created(response=self.response)])

    def in_progress(self) -> Out:
        return self._sealed([ev.InProgress(response=self.response)])

    def feed(self, deltas: Iterable[Delta]) -> Out:
        out: Out = []
        for delta in deltas:
            if type(delta) is Text and self._text is not None:
                out += self._text.take((delta,), 0)
            else:
                self._take(delta, out)
                self._text = self._open.text if isinstance(self._open, OpenMessage) else None
        return self._sealed(out)

    def say(self, texts: Sequence[Text]) -> Out:
        """Text and nothing else, the token path: the same events as from `feed` at less than half the cost."""
        if self._text is None or self._obfuscates:
            return self.feed(texts)
        out = self._text.take(texts, self._number)
        self._number += len(out)
        return out

    def finish(self, ending: Ending, usage: Usage | None, at: int) -> Out:
        out: Out = []
        if ending.status == "completed" and not self._items:
            self._take(Text(""), out)
        self._close_all("completed" if ending.status == "completed" else "incomplete", out)
        self._sealed(out)
        self.response = closing(self.response, ending, usage, at)
        return out + self._sealed(_terminal(self.response, ending))

    def _take(self, delta: Delta, out: Out) -> None:
        match delta:
            case Text() | Refusal() | Citation():
                self._message(out).take(delta, out)
            case Thought() | Summary():
                self._reasoning(out).take(delta, out)
            case CallDelta(key=key, text=text):
                self._calls[key].take(text, out)
            case CallStarted():
                self._start_call(delta, out)
            case CallDone(key=key):
                self._calls.pop(key).close("completed", out)
            case _:
                assert_never(delta)

    def _message(self, out: Out) -> OpenMessage:
        if not isinstance(self._open, OpenMessage):
            if self._items:
                self._close_all("completed", out)
            self._open = OpenMessage(self._new_id("msg"), self._next_index(), out)
        return self._open

    def _reasoning(self, out: Out) -> OpenReasoning:
        if not isinstance(self._open, OpenReasoning):
            self._close_all("completed", out)
            self._open = OpenReasoning(self._new_id("rs"), self._next_index(), out)
        return self._open

    def _start_call(self, started: CallStarted, out: Out) -> None:
        self._close_open("completed", out)
        item_id = self._new_id("fc" if started.kind == "function" else "ctc")
        self._calls[started.key] = OpenCall(item_id, self._new_id("call"), self._next_index(), started)
        self._calls[started.key].open(out)

    def _next_index(self) -> int:
        self._items += 1
        return self._items - 1

    def _close_all(self, status: Status, out: Out) -> None:
        self._close_open(status, out)
        for call in self._calls.values():
            call.close(status, out)
        self._calls.clear()

    def _close_open(self, status: Status, out: Out) -> None:
        if self._open is not None:
            self._open.close(status, out)
            self._open = None

    def _sealed(self, out: Out) -> Out:
        """Number the events and let the Response keep up with them."""
        number = self._number
        for event in out:
            event.sequence_number = number
            number += 1
            if type(event) in ADDING:
                self.response = apply(self.response, event)
        self._number = number
        if self._obfuscates:
            obfuscate(out)
        return out


def _terminal(response: Response, ending: Ending) -> Out:
    if ending.status == "completed":
        return [ev.Completed(response=response)]
    if ending.error is not None:
        return [_error(ending.error), ev.Failed(response=response)]
    # The SDKs know no `response.cancelled`, and Codex tries a failed one again.
    return [ev.Incomplete(response=response)]


def _error(error: AntiphonError) -> ev.Error:
    body = ev.ErrorBody(type=error.type, code=error.code, message=error.message, param=error.param)
    return ev.Error(
        code=error.code,
        message=error.message,
        param=error.param,
        error=body,
        retry_after=UNSET if error.retry_after is None else error.retry_after,
    )
