"""Adds a summary and encrypted content to the reasoning of a model, as far as the request includes them.

Open models write no summary of their own, so by default the reasoning itself is emitted as the summary. With
--reasoning-summaries model it writes one (reasoning_summaries.py). Reasoning is encrypted once, when a delta follows
that closes its item.
"""

from collections.abc import Iterable

from antiphon.core.deltas import (
    Break,
    CallStarted,
    Citation,
    Delta,
    EncryptedReasoning,
    ItemAdded,
    ReasoningDelta,
    Refusal,
    Summary,
    Text,
)
from antiphon.core.encrypted_reasoning import Encrypt

# Deltas that close an open reasoning item in the emitter. A late CallDone does not.
CLOSING_DELTAS = frozenset({Text, Refusal, Citation, CallStarted, Break, ItemAdded})


class ReasoningFilter:
    """Filter for the deltas of one model call. It comes after tool resolution, so a dropped call closes nothing."""

    def __init__(self, summarise: bool, encrypt: Encrypt | None) -> None:
        self._summarise = summarise
        self._encrypt = encrypt
        self._pieces: list[str] = []
        self.open = False  # there is reasoning that is not encrypted yet

    def feed(self, deltas: Iterable[Delta]) -> list[Delta]:
        out: list[Delta] = []
        for delta in deltas:
            if type(delta) is ReasoningDelta or type(delta) is Summary:
                self._add(delta, out)
            else:
                if self.open and type(delta) in CLOSING_DELTAS:
                    out += self.finish()
                out.append(delta)
        return out

    def finish(self) -> list[Delta]:
        """Return the encrypted content of the open reasoning, if it is requested."""
        if not self.open or self._encrypt is None:
            return []
        text, self._pieces, self.open = "".join(self._pieces), [], False
        return [EncryptedReasoning(self._encrypt(text))]

    def _add(self, delta: ReasoningDelta | Summary, out: list[Delta]) -> None:
        if self._encrypt is not None:
            self._pieces.append(delta.text)
            self.open = True
        out.append(Summary(delta.text) if self._summarise and type(delta) is ReasoningDelta else delta)
