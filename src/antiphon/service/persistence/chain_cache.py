"""Chains of responses that were continued lately, kept in memory within a bound of bytes.

    root ◀── node ◀── node ◀── leaf             a node knows its parent; branches share theirs
                        ▲───── leaf

Only leaves are forgotten, the one that was used longest ago first; then its parent may be the next. So whatever is
known is known down to its root, and what is counted is all that is held.
"""

from collections import OrderedDict

from msgspec import Struct

from antiphon.protocol.types.items import InputItem

_POINTER = 8  # bytes that an item takes in the list of a whole history


class Node(Struct, eq=False):
    tenant: str
    id: str
    items: tuple[InputItem, ...]  # its own: the input, then the output
    size: int
    parent: "Node | None"
    children: int = 0
    whole: tuple[InputItem, ...] | None = None  # its items and all before them; one node of a chain has this


class Chains:
    def __init__(self, most: int) -> None:
        self.bytes = 0
        self._most = most
        self._nodes: dict[str, dict[str, Node]] = {}  # by tenant
        self._leaves: OrderedDict[Node, None] = OrderedDict()

    def find(self, tenant: str, response_id: str) -> Node | None:
        node = self._nodes.get(tenant, {}).get(response_id)
        if node is not None and not node.children:
            self._leaves.move_to_end(node)
        return node

    def ids(self, tenant: str) -> frozenset[str]:
        return frozenset(self._nodes.get(tenant, ()))

    def add(self, node: Node) -> Node:
        """Its parent is known. Gives the one that is known already, if there is one. The bound is kept by `trim`."""
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

    def whole(self, node: Node) -> tuple[InputItem, ...]:
        """All items from the root to this one's. The list moves along a chain that grows, so that each turn adds to it
        and a chain has only one."""
        turns: list[Node] = []
        at: Node | None = node
        while at is not None and at.whole is None:
            turns.append(at)
            at = at.parent
        if not turns:
            return node.whole or ()
        begun = () if at is None else at.whole or ()
        whole = (*begun, *[item for turn in reversed(turns) for item in turn.items])
        if self._nodes.get(node.tenant, {}).get(node.id) is node:  # else nobody would ever count it out
            node.whole = whole
            if at is not None:
                at.whole = None
            self.bytes += _POINTER * (len(whole) - len(begun))
        return whole

    def trim(self) -> None:
        while self.bytes > self._most and self._leaves:
            self._drop(next(iter(self._leaves)))

    def forget(self, tenant: str, response_id: str) -> None:
        """Unless others that are known continue it."""
        node = self._nodes.get(tenant, {}).get(response_id)
        if node is not None and not node.children:
            self._drop(node)

    def _drop(self, leaf: Node) -> None:
        del self._leaves[leaf]
        nodes = self._nodes[leaf.tenant]
        del nodes[leaf.id]
        if not nodes:
            del self._nodes[leaf.tenant]
        self.bytes -= leaf.size + _POINTER * len(leaf.whole or ())
        if (parent := leaf.parent) is not None:
            parent.children -= 1
            if not parent.children:
                self._leaves[parent] = None
                self._leaves.move_to_end(parent, last=False)
