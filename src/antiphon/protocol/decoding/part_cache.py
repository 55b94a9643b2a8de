"""Caches decoded parts of requests: tool lists and output formats, the fields that agents repeat with every request.

A part is looked up by its raw bytes, so whatever else differs between two requests does not matter. Each tenant has its
own parts: otherwise the time until an answer begins would reveal to one tenant what another one sends. A part is added
when it is seen for the second time, so that parts that never repeat cost one hash. Least recently used ones go first.
"""

from collections import OrderedDict
from collections.abc import Callable
from threading import Lock
from typing import Any, Final

from msgspec import Struct

MAX_PART_BYTES: Final = 128 * 1024
MAX_TENANT_BYTES: Final = 256 * 1024  # of raw parts; decoded and rendered they take several times as much memory
MAX_TENANTS: Final = 32
MAX_SEEN: Final = 256  # hashes of parts that a tenant sent once


class RequestPart(Struct, frozen=True):
    """The decoded and checked value of one field."""

    value: Any
    ignored: list[str] = []  # names of unknown fields in it
    cacheable: bool = True


DecodePart = Callable[[bytes], RequestPart]
PartKey = tuple[type, str, bytes]  # the same bytes mean something else in a body of another API


class TenantParts:
    """The parts of one tenant, by body type, field name and raw bytes. The lock is for bodies decoded in threads."""

    def __init__(self) -> None:
        self._parts: OrderedDict[PartKey, RequestPart] = OrderedDict()
        self._seen: OrderedDict[int, None] = OrderedDict()
        self._lock = Lock()
        self.total_bytes = 0

    def find(self, key: PartKey, decode: DecodePart) -> RequestPart:
        """Return the part, decoded now unless it is cached."""
        raw = key[-1]
        with self._lock:
            if (part := self._parts.get(key)) is not None:
                self._parts.move_to_end(key)
                return part
        part = decode(raw)
        if part.cacheable and len(raw) <= MAX_PART_BYTES:
            with self._lock:
                self._add(key, part)
        return part

    def _add(self, key: PartKey, part: RequestPart) -> None:
        seen = hash(key)
        if seen not in self._seen:
            self._seen[seen] = None
            if len(self._seen) > MAX_SEEN:
                self._seen.popitem(last=False)
        elif key not in self._parts:
            self._parts[key] = part
            self.total_bytes += len(key[-1])
            while self.total_bytes > MAX_TENANT_BYTES:
                oldest, _ = self._parts.popitem(last=False)
                self.total_bytes -= len(oldest[-1])


class PartCache:
    """The parts of the tenants that sent requests last. Only the event loop's thread may call it."""

    def __init__(self) -> None:
        self._tenants: OrderedDict[str, TenantParts] = OrderedDict()

    def for_tenant(self, tenant: str) -> TenantParts:
        if (parts := self._tenants.get(tenant)) is None:
            parts = self._tenants[tenant] = TenantParts()
            if len(self._tenants) > MAX_TENANTS:
                self._tenants.popitem(last=False)
        self._tenants.move_to_end(tenant)
        return parts
