"""In-memory cache of recently continued response chains, within a byte limit.

    root ◀── node ◀── node ◀── leaf             a node references its parent; branches share theirs
                        ▲───── leaf

Only leaves are evicted, least recently used first; their parent may then become the next leaf. So every cached node has
all its ancestors cached, and the counted bytes are all that is held.
"""

from collections import OrderedDict
from collections.abc import Sequence

from msgspec import Struct

from antiphon.protocol.decoding.codec import encode
from antiphon.protocol.types.items import InputItem
from antiphon.protocol.types.response import Response

_POINTER_BYTES = 8  # size of one item reference in a history tuple

MAX_BYTES = 32 * 1024 * 1024
MAX_OTHERS = 16  # besides the last response of each lane

_CONTINUABLE = frozenset({"completed", "incomplete"})


class ChainNode(Struct, eq=False):
    tenant: str
    id: str
    items: tuple[InputItem, ...]  # of this response: its input, then its output
    size: int
    parent: "ChainNode | None"
    children: int = 0
    history: tuple[InputItem, ...] | None = None  # all items up to and including its own; set on one node of a chain


class ChainCache:
    def __init__(self, max_bytes: int) -> None:
        self.bytes = 0
        self._max_bytes = max_bytes
        self._nodes: dict[str, dict[str, ChainNode]] = {}  # by tenant and response id
        self._leaves: OrderedDict[ChainNode, None] = OrderedDict()

    def find(self, tenant: str, response_id: str) -> ChainNode | None:
        node = self._nodes.get(tenant, {}).get(response_id)
        if node is not None and not node.children:
            self._leaves.move_to_end(node)
        return node

    def ids(self, tenant: str) -> frozenset[str]:
        return frozenset(self._nodes.get(tenant, ()))

    def add(self, node: ChainNode) -> ChainNode:
        """Add a node whose parent is cached; returns the cached node if it exists. `trim` enforces the limit."""
        nodes = self._nodes.setdefault(node.tenant, {})
        if node.id in nodes:
            return nodes[node.id]
        if (parent := node.parent) is not None:
            parent.children += 1
            self._leaves.pop(parent, None)
        nodes[node.id] = node
        self._leaves[node] = None
        self.bytes += node.size
        return node

    def build_history(self, node: ChainNode) -> tuple[InputItem, ...]:
        """Return all items from the root up to this node.

        The tuple moves along a growing chain, so that each turn only appends to it and a chain holds one tuple.
        """
        turns: list[ChainNode] = []
        ancestor: ChainNode | None = node
        while ancestor is not None and ancestor.history is None:
            turns.append(ancestor)
            ancestor = ancestor.parent
        if not turns:
            return node.history or ()
        prefix = () if ancestor is None else ancestor.history or ()
        history = (*prefix, *[item for turn in reversed(turns) for item in turn.items])
        if self._nodes.get(node.tenant, {}).get(node.id) is node:  # an uncached node would never be uncounted
            node.history = history
            if ancestor is not None:
                ancestor.history = None
            self.bytes += _POINTER_BYTES * (len(history) - len(prefix))
        return history

    def trim(self) -> None:
        """Evict leaves until the cache is within its limit."""
        while self.bytes > self._max_bytes and self._leaves:
            self._drop(next(iter(self._leaves)))

    def forget(self, tenant: str, response_id: str) -> None:
        """Remove a node unless cached nodes continue it."""
        node = self._nodes.get(tenant, {}).get(response_id)
        if node is not None and not node.children:
            self._drop(node)

    def _drop(self, leaf: ChainNode) -> None:
        del self._leaves[leaf]
        nodes = self._nodes[leaf.tenant]
        del nodes[leaf.id]
        if not nodes:
            del self._nodes[leaf.tenant]
        self.bytes -= leaf.size + _POINTER_BYTES * len(leaf.history or ())
        if (parent := leaf.parent) is not None:
            parent.children -= 1
            if not parent.children:
                self._leaves[parent] = None
                self._leaves.move_to_end(parent, last=False)


class CachedResponse(Struct, frozen=True, eq=False):
    lane: str | None
    items: tuple[InputItem, ...]  # the complete conversation up to its end
    size: int  # bytes of the items; shared items count for each entry


class ConnectionCache:
    def __init__(self, max_bytes: int = MAX_BYTES, max_others: int = MAX_OTHERS) -> None:
        self._max_bytes = max_bytes
        self._max_others = max_others
        self._bytes = 0
        self._entries: OrderedDict[str, CachedResponse] = OrderedDict()
        self._last: dict[str | None, str] = {}  # response id by lane

    def __contains__(self, response_id: str) -> bool:
        return response_id in self._entries

    def find_items(self, response_id: str) -> tuple[InputItem, ...] | None:
        """Return the items that a continuation of the response starts with, or None if it is not cached."""
        entry = self._entries.get(response_id)
        return None if entry is None else entry.items

    def remember(self, lane: str | None, response: Response, history: Sequence[InputItem], request_bytes: int) -> None:
        """Cache a response. `history`: items before its output. `request_bytes`: size of the request.

        Responses that cannot be continued or that are too large are not cached.
        """
        if response.status not in _CONTINUABLE:
            return
        parent = self._entries.get(response.previous_response_id or "")
        size = request_bytes + len(encode(response.output)) + (0 if parent is None else parent.size)
        if size > self._max_bytes:  # too large to cache; evict nothing for it
            return
        self._entries[response.id] = CachedResponse(lane, (*history, *response.output), size)
        self._last[lane] = response.id
        self._bytes += size
        self._trim()

    def drop_failed_parent(self, lane: str | None, previous: str | None) -> None:
        """Drop the response that a failed run was to continue, if it is on the same lane.

        Its state may differ from the client's, so it must not be continued.
        """
        entry = self._entries.get(previous or "")
        if entry is not None and previous is not None and entry.lane == lane:
            self._drop(previous)

    def _trim(self) -> None:
        last = {*self._last.values()}
        for response_id in [each for each in self._entries if each not in last]:
            if len(self._entries) - len(last) <= self._max_others and self._bytes <= self._max_bytes:
                return
            self._drop(response_id)
        while self._bytes > self._max_bytes:
            self._drop(next(iter(self._entries)))

    def _drop(self, response_id: str) -> None:
        entry = self._entries.pop(response_id)
        self._bytes -= entry.size
        if self._last.get(entry.lane) == response_id:
            del self._last[entry.lane]
