"""What was declared: the name a model called → the kind of call that this is.

A call of something that was not declared is dropped whole: it leaves no item, since a client could
neither run nor recognise it; `dropped` holds its name. So does every call after the first where
parallel calls are not allowed. All other deltas pass as they are.

What the server is to run is gathered (`wishes`) from what is left when an answer was judged. Of that only the arguments
of MCP calls are told piece by piece, and not of those that a client has to allow first. A call of one of the client's
own tools (a shell, a patch) is gathered too, and told as its item once it is whole.
"""

from collections.abc import Iterable, Mapping
from typing import Literal

from msgspec import Struct

from antiphon.core.deltas import CallDelta, CallDone, CallStarted, Delta, Put
from antiphon.parsers.json.partial import StringProperty
from antiphon.render.tools.client_calls import cut, made
from antiphon.render.tools.client_tools import CLIENT_KINDS, CONTAINER
from antiphon.render.tools.declarations import Offer

_CALLS = frozenset({CallStarted, CallDelta, CallDone})
_CLIENTS = frozenset({"function", "custom"}) | CLIENT_KINDS
_KINDS: dict[str, Literal["function", "custom", "mcp"]] = {"function": "function", "custom": "custom", "mcp": "mcp"}


class Wish:
    """A call of something that the server runs, as far as it is said."""

    def __init__(self, key: int, offer: Offer) -> None:
        self.key = key
        self.offer = offer
        self.told = offer.kind == "mcp" and not offer.approval  # piece by piece
        self.whole = False
        self._pieces: list[str] = []

    @property
    def arguments(self) -> str:
        return "".join(self._pieces)

    def take(self, text: str) -> None:
        self._pieces.append(text)


class Declared(Struct, eq=False):
    """One for each call of a model."""

    _offers: Mapping[str, Offer]
    _parallel: bool = True
    first: int = 0  # of the keys that are given out: those of earlier turns are taken
    clients: int = 0  # calls that are the client's to run
    dropped: list[str] = []
    _inputs: dict[int, StringProperty | None] = {}  # the calls that pass; custom input is unwrapped
    _called: dict[int, Offer] = {}  # what is gathered
    _wishes: dict[int, Wish] = {}

    def again(self) -> "Declared":
        """For another call of the same request. The key of a call that was told is no other call's."""
        return Declared(self._offers, self._parallel, first=self.next_key)

    @property
    def empty(self) -> bool:
        """There is nothing that could be called."""
        return not self._offers

    @property
    def wishes(self) -> list[Wish]:
        """What the server is to run, as it was called. What was not said to its end is not to be run."""
        return [wish for wish in self._wishes.values() if wish.whole and wish.offer.kind not in CLIENT_KINDS]

    @property
    def next_key(self) -> int:
        return max(list(self._inputs), default=self.first - 1) + 1

    def name(self, deltas: Iterable[Delta]) -> Iterable[Delta]:
        """On the token path: where nothing is called the same list comes back."""
        given = deltas if type(deltas) is list else list(deltas)
        for delta in given:
            if type(delta) in _CALLS:
                return self._named(given)
        return given

    def gather(self, deltas: Iterable[Delta]) -> Iterable[Delta]:
        """What of these is told, once it is judged."""
        if not self._called:
            return deltas
        return [told for delta in deltas for told in self._gathered(delta)]

    def cut_short(self) -> list[Delta]:
        """Of the client's own tools, what a model that was cut had begun to call. It is not to be run."""
        begun = [wish for wish in self._wishes.values() if wish.offer.kind in CLIENT_KINDS and not wish.whole]
        return [Put(item) for wish in begun if (item := cut(wish.offer.kind, wish.arguments)) is not None]

    def _gathered(self, delta: Delta) -> tuple[Delta, ...]:
        if type(delta) not in _CALLS or delta.key not in self._called:  # type: ignore[union-attr]  # a call's
            return (delta,)
        wish = self._wish(delta.key)  # type: ignore[union-attr]  # as above
        ends = type(delta) is CallDone and not wish.whole
        if type(delta) is CallDelta:
            wish.take(delta.text)
        wish.whole = wish.whole or ends
        if ends and wish.offer.kind in CLIENT_KINDS:
            return (Put(made(wish.offer.kind, wish.arguments)),)
        return (delta,) if wish.told else ()

    def _wish(self, key: int) -> Wish:
        if key not in self._wishes:
            self._wishes[key] = Wish(key, self._called[key])
        return self._wishes[key]

    def _named(self, deltas: Iterable[Delta]) -> list[Delta]:
        out: list[Delta] = []
        for delta in deltas:
            match delta:
                case CallStarted():
                    self._start(self.first + delta.key, delta.name, out)
                case CallDelta():
                    self._go_on(self.first + delta.key, delta.text, out)
                case CallDone():
                    self._end(self.first + delta.key, out)
                case _:
                    out.append(delta)
        return out

    def _start(self, key: int, name: str, out: list[Delta]) -> None:
        offer = self._offers.get(name) or self._meant(name)
        if offer is None or (self._inputs and not self._parallel):
            self.dropped.append(name)
            return
        self._inputs[key] = StringProperty("input") if offer.kind == "custom" else None
        if offer.kind in _CLIENTS:
            self.clients += 1
        if offer.kind not in ("function", "custom"):
            self._called[key] = offer
        out.append(CallStarted(key, offer.name, _KINDS.get(offer.kind, "function"), offer.namespace))

    def _meant(self, name: str) -> Offer | None:
        """Models say `exec`, `functions.exec` or `functions/exec` where `functions__exec` is offered, and `get_sum`
        for `get-sum`."""
        meant = [offer for offer in self._offers.values() if name in _spellings(offer)]
        if not meant:
            folded = _folded(name)
            meant = [
                offer
                for plain, offer in self._offers.items()
                if folded == _folded(plain) or folded in map(_folded, _spellings(offer))
            ]
        return meant[0] if len(meant) == 1 else self._shell(name)

    def _shell(self, name: str) -> Offer | None:
        """gpt-oss knows one by another name: whatever it calls in its container is for the first shell there is."""
        shells = [offer for offer in self._offers.values() if offer.recipient == CONTAINER]
        return shells[0] if shells and name.partition(".")[0] == CONTAINER.partition(".")[0] else None

    def _go_on(self, key: int, text: str, out: list[Delta]) -> None:
        if key not in self._inputs:
            return
        unwrap = self._inputs[key]
        if unwrap is None:
            out.append(CallDelta(key, text))
        elif plain := unwrap.feed(text):
            out.append(CallDelta(key, plain))

    def _end(self, key: int, out: list[Delta]) -> None:
        if key not in self._inputs:
            return
        unwrap = self._inputs[key]
        if unwrap is not None and (text := unwrap.finish()):
            out.append(CallDelta(key, text))
        out.append(CallDone(key))


def _folded(name: str) -> str:
    return name.replace("-", "_").casefold()


def _spellings(offer: Offer) -> tuple[str, ...]:
    space = offer.namespace or "functions"
    if offer.recipient and offer.recipient != CONTAINER:
        return offer.name, offer.recipient
    return offer.name, f"{space}.{offer.name}", f"{space}/{offer.name}", f"{space}:{offer.name}"
