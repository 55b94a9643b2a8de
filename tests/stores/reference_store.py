"""A reference store made of a few dictionaries, simple enough to be correct; real stores are compared with it."""

from collections.abc import Iterator

from msgspec import Struct, field

from antiphon.stores.base import Claim, NewResponse, OutputSubmission
from antiphon.testing.rows.response_rows import TTL


class ReferenceRow(Struct):
    tenant: str
    new: NewResponse
    fence: int
    attempts: int = 1
    owner: str | None = None
    lease: float = 0.0
    running: bool = True
    hidden: bool = False
    deleted_while_running: bool = False  # what its owner writes afterwards is lost
    expires: float = float("inf")
    calls: dict[str, bytes | None] = field(
        default_factory=dict
    )  # the output of each expected call, None until it is submitted; cleared when the response ends


class ReferenceConversation(Struct):
    tenant: str
    items: list[str]
    deleted: bool = False


class ReferenceStore:
    def __init__(self) -> None:
        self.rows: dict[str, ReferenceRow] = {}
        self.talks: dict[str, ReferenceConversation] = {}
        self.owners: dict[str, float] = {}

    def is_visible(self, tenant: str, name: str | None, now: float) -> bool:
        row = self.rows.get(name or "")
        return row is not None and row.tenant == tenant and not row.hidden and row.expires > now

    def chain(self, tenant: str, name: str, now: float) -> list[str]:
        return list(self._walk_chain(name)) if self.is_visible(tenant, name, now) else []

    def finish(self, row: ReferenceRow, expires: float) -> None:
        row.running, row.owner, row.expires = False, None, expires
        row.calls.clear()

    def take(self, row: ReferenceRow, claim: Claim) -> None:
        row.owner, row.lease = claim.owner, claim.until
        row.fence += 1
        row.attempts += 1

    def find_orphans(self, now: float) -> list[ReferenceRow]:
        running = [row for row in self.rows.values() if row.running]
        expired = [row for row in running if row.lease <= now and self.owners.get(row.owner or "", 0.0) <= now]
        return sorted(expired, key=lambda row: (row.new.created, row.new.id))

    def submit(self, tenant: str, name: str, call: str, output: bytes, now: float) -> OutputSubmission:
        row = self.rows[name]
        if not self.is_visible(tenant, name, now):
            return "unknown"
        if not row.running:
            return "ended"
        if call not in row.calls:
            return "not pending" if None in row.calls.values() else "not waiting"
        if row.calls[call] is not None:
            return "answered"
        row.calls[call] = output
        return "taken"

    def delete(self, name: str) -> None:
        """Hide the response while another one continues it, and remove it otherwise."""
        self.rows[name].hidden = True
        self.rows[name].deleted_while_running = self.rows[name].running
        self.rows[name].running = False
        self.rows[name].calls.clear()
        at: str | None = name
        while at is not None and self.rows[at].hidden and not self._is_continued(at):
            at = self.rows.pop(at).new.previous

    def sweep(self, now: float, entries: int | None) -> None:
        for name, row in list(self.rows.items()):
            if name in self.rows and not row.hidden and row.expires <= now:
                self.delete(name)
        if entries is not None:
            for tenant in {row.tenant for row in self.rows.values()}:
                self._evict(tenant, entries)

    def _evict(self, tenant: str, entries: int) -> None:
        mine = [row for row in self.rows.values() if row.tenant == tenant and not row.hidden]
        ended = sorted((row for row in mine if not row.running), key=lambda row: (row.expires, row.new.created))
        for row in ended[: max(0, len(mine) - entries)]:
            self.delete(row.new.id)

    def _walk_chain(self, name: str | None) -> Iterator[str]:
        while name is not None:
            yield name
            name = self.rows[name].new.previous

    def _is_continued(self, name: str) -> bool:
        return any(row.new.previous == name for row in self.rows.values())


def compute_expiry(now: float) -> float:
    return now + TTL
