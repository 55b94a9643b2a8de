"""What was declared: the name a model called → the kind of call that this is.

A call of something that was not declared is dropped whole: it leaves no item, since a client could
neither run nor recognise it; `dropped` holds its name. So does every call after the first where
parallel calls are not allowed. All other deltas pass as they are.
"""

from collections.abc import Iterable, Mapping

from antiphon.core.deltas import CallDelta, CallDone, CallStarted, Delta
from antiphon.parsers.partial_json import StringProperty
from antiphon.render.tools import Offer

_CALLS = frozenset({CallStarted, CallDelta, CallDone})


class Declared:
    """One for each call of a model."""

    def __init__(self, offers: Mapping[str, Offer], *, parallel: bool = True) -> None:
        self._offers = offers
        self._parallel = parallel
        self._inputs: dict[int, StringProperty | None] = {}  # the calls that pass; custom input is unwrapped
        self.dropped: list[str] = []

    def again(self) -> "Declared":
        """For another call of the same request."""
        return Declared(self._offers, parallel=self._parallel)

    def name(self, deltas: Iterable[Delta]) -> Iterable[Delta]:
        """On the token path: where nothing is called the same list comes back."""
        given = deltas if type(deltas) is list else list(deltas)
        for delta in given:
            if type(delta) in _CALLS:
                return self._named(given)
        return given

    def _named(self, deltas: Iterable[Delta]) -> list[Delta]:
        out: list[Delta] = []
        for delta in deltas:
            match delta:
                case CallStarted():
                    self._start(delta, out)
                case CallDelta():
                    self._go_on(delta, out)
                case CallDone():
                    self._end(delta, out)
                case _:
                    out.append(delta)
        return out

    def _start(self, delta: CallStarted, out: list[Delta]) -> None:
        offer = self._offers.get(delta.name) or self._meant(delta.name)
        if offer is None or (self._inputs and not self._parallel):
            self.dropped.append(delta.name)
            return
        self._inputs[delta.key] = StringProperty("input") if offer.kind == "custom" else None
        out.append(CallStarted(delta.key, offer.name, offer.kind, offer.namespace))

    def _meant(self, name: str) -> Offer | None:
        """Models say `exec`, `functions.exec` or `functions/exec` for what is offered as `functions__exec`."""
        meant = [offer for offer in self._offers.values() if name in _spellings(offer)]
        return meant[0] if len(meant) == 1 else None

    def _go_on(self, delta: CallDelta, out: list[Delta]) -> None:
        if delta.key not in self._inputs:
            return
        unwrap = self._inputs[delta.key]
        if unwrap is None:
            out.append(delta)
        elif text := unwrap.feed(delta.text):
            out.append(CallDelta(delta.key, text))

    def _end(self, delta: CallDone, out: list[Delta]) -> None:
        if delta.key not in self._inputs:
            return
        unwrap = self._inputs[delta.key]
        if unwrap is not None and (text := unwrap.finish()):
            out.append(CallDelta(delta.key, text))
        out.append(delta)


def _spellings(offer: Offer) -> tuple[str, ...]:
    space = offer.namespace or "functions"
    return offer.name, f"{space}.{offer.name}", f"{space}/{offer.name}", f"{space}:{offer.name}"
