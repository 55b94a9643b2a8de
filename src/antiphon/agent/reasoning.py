"""What becomes of reasoning on its way out: a summary, if one was asked for, and something sealed, if that was.

Open models write no summary of their own: the reasoning itself is given as one. It is sealed once it is whole, when
something follows that ends its item; nothing is sealed on the way there.
"""

from collections.abc import Iterable

from antiphon.core.deltas import Break, CallStarted, Citation, Delta, Put, Refusal, Sealed, Summary, Text, Thought
from antiphon.core.encrypted_reasoning import Seal

# What ends an open reasoning in the emitter. A late CallDone does not.
_ENDS = frozenset({Text, Refusal, Citation, CallStarted, Break, Put})


class Thoughts:
    """One for each call of a model. It is fed what was declared: a call that nobody hears of ends nothing."""

    def __init__(self, summarises: bool, seal: Seal | None) -> None:
        self._summarises = summarises
        self._seal = seal
        self._pieces: list[str] = []
        self.open = False  # something was thought, and is not sealed yet

    def feed(self, deltas: Iterable[Delta]) -> list[Delta]:
        out: list[Delta] = []
        for delta in deltas:
            if type(delta) is Thought or type(delta) is Summary:
                self._think(delta, out)
            else:
                if self.open and type(delta) in _ENDS:
                    out += self.finish()
                out.append(delta)
        return out

    def finish(self) -> list[Delta]:
        """What was thought last, sealed, if it has to be."""
        if not self.open or self._seal is None:
            return []
        whole, self._pieces, self.open = "".join(self._pieces), [], False
        return [Sealed(self._seal(whole))]

    def _think(self, delta: Thought | Summary, out: list[Delta]) -> None:
        if self._seal is not None:
            self._pieces.append(delta.text)
            self.open = True
        out.append(Summary(delta.text) if self._summarises and type(delta) is Thought else delta)
