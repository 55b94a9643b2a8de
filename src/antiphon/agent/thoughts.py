"""A client that asks for a summary of the reasoning gets the reasoning as one: open models write no other."""

from collections.abc import Iterable, Iterator

from antiphon.core.deltas import Delta, Summary, Thought


def as_summary(deltas: Iterable[Delta]) -> Iterator[Delta]:
    for delta in deltas:
        yield Summary(delta.text) if isinstance(delta, Thought) else delta
