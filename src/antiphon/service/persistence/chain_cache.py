"""In-memory cache of recently continued response chains, within a byte limit.

    root ◀── node ◀── node ◀── leaf             a node references its parent; branches share theirs
                        ▲───── leaf

Only leaves are evicted, least recently used first; their parent may then become the next leaf. So every cached node has
all its ancestors cached, and the counted bytes are all that is held.
"""

from collections import OrderedDict

from msgspec import Struct

from antiphon.protocol.types.items import InputItem

_POINTER_BYTES = 8  # size of one item reference in a history tuple


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
