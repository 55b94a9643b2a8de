"""Several who change what a model says on its way out, one after the other."""

from collections.abc import Sequence

from antiphon.core.deltas import Delta
from antiphon.tools.base import Rewriter


def joined(rewriters: Sequence[Rewriter]) -> Rewriter | None:
    if not rewriters:
        return None
    return rewriters[0] if len(rewriters) == 1 else _Joined(rewriters)


class _Joined:
    def __init__(self, rewriters: Sequence[Rewriter]) -> None:
        self._rewriters = rewriters

    def feed(self, deltas: Sequence[Delta]) -> list[Delta]:
        for rewriter in self._rewriters:
            deltas = rewriter.feed(deltas)
        return [*deltas]

    def finish(self) -> list[Delta]:
        rest: list[Delta] = []
        for rewriter in self._rewriters:
            rest = rewriter.feed(rest) + rewriter.finish()
        return rest
