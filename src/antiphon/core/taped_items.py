"""Calls and what the server did, for a tape: taken from the terminal Response, one after the other as they began.

What began otherwise than its end tells has its beginning on the tape: a search whose page was found out on the way.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any, Generic, TypeVar

from msgspec import UNSET
from msgspec.structs import replace

from antiphon.core.client_items import is_clients, unnamed
from antiphon.core.deltas import CallStarted, Opened, Put, PutItem, Ran, ServerItem
from antiphon.core.server_items import KINDS, is_served, shown
from antiphon.core.spoken import Spoken
from antiphon.protocol.items import (
    Annotation,
    CustomToolCall,
    FunctionCall,
    McpCall,
    Message,
    OutputItem,
    Reasoning,
)
from antiphon.protocol.response import Logprob, Response

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
