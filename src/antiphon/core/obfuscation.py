"""Padding for deltas, so that who watches an encrypted stream does not learn how long its tokens are.

It depends on the delta alone: a replay has the same bytes as the first sending.
"""

from collections.abc import Iterable

from antiphon.protocol import events as ev

_BLOCK = 16
_Padded = (
    ev.OutputTextDelta
    | ev.RefusalDelta
    | ev.ReasoningTextDelta
    | ev.ReasoningSummaryTextDelta
    | ev.FunctionCallArgumentsDelta
    | ev.CustomToolCallInputDelta
    | ev.McpCallArgumentsDelta
    | ev.CodeInterpreterCallCodeDelta
    | ev.ShellCallCommandDelta
)


def obfuscate(events: Iterable[ev.Event]) -> None:
    for event in events:
        if isinstance(event, _Padded):
            event.obfuscation = "." * (-len(event.delta.encode()) % _BLOCK)
