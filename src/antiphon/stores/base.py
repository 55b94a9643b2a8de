"""What a store keeps and promises; tenant is the first argument of every method that touches what somebody owns.

Each method is one transaction. What it changed is durable when it returns, or it raised and nothing was changed. An id
of another tenant answers exactly like one that never was. A store that cannot answer raises Unavailable, in time.

A response's row:

    begin ──▶ queued ──▶ in_progress ──▶ completed | incomplete | failed | cancelled      (finish, once)
                 └────── a lease says whose it is; a fence says which owner's word counts ──────┘

The fence grows with every change of owner. `start`, `finish`, `append` and `release` under another fence than the
row's raise Lost and change nothing. Times are seconds since the epoch.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Literal, Protocol

from msgspec import Struct
from msgspec.structs import replace

Status = Literal["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]
RUNNING: tuple[Status, ...] = ("queued", "in_progress")


class Lost(Exception):
    """The run has another owner, has ended or is gone: whatever its former owner says no longer counts."""


class NewResponse(Struct, frozen=True, kw_only=True):
    """A response's row at its beginning."""

    id: str
    status: Status
    background: bool = False
    rank: int = 1  # of one for the background: whose turn comes first, 0 before 1 before 2
    bearer: str = ""  # the key that it is charged to beside its tenant, if it has to wait
    created: float
    deadline: float | None = None  # for all attempts of a background run together
    previous: str | None = None
    conversation: str | None = None
    request: bytes  # what the Response does not say: the input and what is not echoed
    response: bytes  # its JSON


class Claim(Struct, frozen=True):
    """Who works on a response, and until when that is believed without a sign of life."""

    owner: str
    until: float


class Key(Struct, frozen=True):
    """An Idempotency-Key and a digest of the body that came with it."""

    name: str
    digest: bytes
    expires: float


class ItemRow(Struct, frozen=True):
    id: str
    item: bytes  # JSON


class End(Struct, frozen=True, kw_only=True):
    """How a response ended. `fence` 0 and `new`: the row was never begun, and is written now, all at once."""

    id: str
    fence: int
    status: Status
    response: bytes
    tape: bytes
    ended: float
    expires: float | None
    new: NewResponse | None = None
    conversation: str | None = None  # gets `items`, as one block, if it is still there
    items: Sequence[ItemRow] = ()
    instead: bool = False  # of another end of this owner's, which failed to be written and may be there yet


class StoredResponse(Struct, frozen=True, kw_only=True):
    id: str
    status: Status
    background: bool
    created: float
    deadline: float | None
    previous: str | None
    conversation: str | None
    request: bytes
    response: bytes  # the terminal one, or as it stood at the beginning
    tape: bytes | None  # once it has ended
    fence: int
    attempts: int  # owners that it has had
    waited: bool = False  # for outputs of a client's tools, at any time
    bearer: str = ""


class Link(Struct, frozen=True):
    """One response of a chain, for those that continue it. It may be hidden: deleted, but needed by a descendant."""

    id: str
    previous: str | None
    request: bytes
    response: bytes


class Claimed(Struct, frozen=True):
    tenant: str
    row: StoredResponse  # with the new fence


class ConversationRow(Struct, frozen=True):
    id: str
    created: float
    metadata: dict[str, str]


class Page(Struct, frozen=True):
    rows: list[ItemRow]
    has_more: bool


class ResponsePage(Struct, frozen=True):
    rows: list[StoredResponse]
    has_more: bool


class ConversationPage(Struct, frozen=True):
    rows: list[ConversationRow]
    has_more: bool


class ApiKey(Struct, frozen=True, kw_only=True):
    """A key that lets clients in. The key itself is nowhere."""

    id: str
    digest: bytes
    tenant: str
    name: str  # whatever the operator wrote
    scopes: frozenset[str]
    created: float
    expires: float | None = None
    revoked: float | None = None


class Bounds(Struct, frozen=True, kw_only=True):
    """Of each tenant; None is no bound. Hidden rows are no entries, but their bytes count, as do those of items."""

    entries: int | None = None
    bytes: int | None = None
    conversations: int | None = None
    own: Mapping[str, int | None] = {}  # bytes, of tenants for whom something else holds

    def of(self, tenant: str) -> "Bounds":
        return replace(self, bytes=self.own[tenant]) if tenant in self.own else self


class Approval(Struct, frozen=True):
    """What a client was asked to allow."""

    digest: bytes  # of the call, as it was asked for
    used: bool


Verdict = Literal["ok", "used", "changed", "unknown"]  # on a call that needs an approval
# What became of a tool's output. It waits for others, or for nothing; it had that output already; it has ended.
Submission = Literal["taken", "not pending", "not waiting", "answered", "ended", "unknown"]


class Schema(Struct, frozen=True):
    """How far a store's tables are."""

    current: int  # 0: there is nothing yet
    newest: int  # that we know
    pending: list[str]  # names of the migrations that `open` would carry out


class Store(Protocol):
    name: str

    async def open(self) -> None:
        """Connect and bring the schema up to date. Raises StartupError, also for a schema that is newer than we are."""

    async def close(self) -> None: ...

    async def schema(self) -> Schema:
        """Look, without opening the store or changing anything; a newer schema is no error here."""

    def healthy(self) -> bool:
        """Did the last operation get through?"""

    # ---- responses

    async def begin(
        self, tenant: str, new: NewResponse, claim: Claim, key: Key | None = None, room: int | None = None
    ) -> str | None:
        """Write the row, with fence 1. Gives the id of the response that already has this key, having written nothing.

        Raises KeyReused if that key came with another body, UnknownPrevious if `previous` is not (or no longer) to be
        seen, UnknownConversation likewise, and Busy if the tenant has `room` background responses that have not ended.
        """

    async def keyed(self, tenant: str, key: Key) -> str | None:
        """The id of the response that has this key, as `begin` would give it. Raises KeyReused likewise."""

    async def start(self, tenant: str, response_id: str, fence: int) -> None:
        """queued → in_progress."""

    async def finish(self, tenant: str, end: End) -> None:
        """The one terminal write; drops the live log's rows. A second one under the same fence changes nothing.

        With `end.new`, raises UnknownPrevious like `begin`.
        """

    async def get(self, tenant: str, response_id: str) -> StoredResponse | None: ...

    async def chain(self, tenant: str, response_id: str, known: frozenset[str] = frozenset()) -> list[Link]:
        """From this response back to the first, or up to one that is `known` (not given). Empty if it is unknown.

        Any depth. The first must be visible; its ancestors may be hidden.
        """

    async def delete(self, tenant: str, response_id: str) -> bool:
        """Hide it at once. What no stored descendant needs is removed, also of hidden ancestors that it kept alive.

        A running one is deleted too: its owner is Lost.
        """

    # ---- leases

    async def renew(self, claim: Claim, ids: Collection[str]) -> set[str]:
        """The owner lives and works on these. Gives those of them that are still running and its own.

        What it does not name is not renewed: a row whose beginning or end went wrong is taken over by the next `claim`.
        """

    async def claim(self, claim: Claim, background: int, released: bool = False) -> list[Claimed]:
        """Take over running responses whose lease is over: all of the foreground, at most `background` others.
        `released`: only what was given back.

        Of the background those of the first rank, but for one in nine, which is of a lower one; among them of whom
        least runs, and the oldest of each tenant. Each gets a new fence and one attempt more. No two callers get the
        same one. The oldest is given first.
        """

    async def take(self, tenant: str, response_id: str, claim: Claim) -> StoredResponse | None:
        """Take over this one, whosever it is, if it has not ended."""

    async def release(self, tenant: str, response_id: str, fence: int) -> None:
        """Give it back: queued again, its lease over at once, this attempt not counted."""

    # ---- the live log of a running response: batches, numbered 0, 1, 2 …

    async def append(self, tenant: str, response_id: str, fence: int, number: int, batch: bytes) -> None: ...

    async def read(self, tenant: str, response_id: str, after: int) -> list[bytes]:
        """The batches whose numbers are above `after` (−1: all)."""

    # ---- outputs of a client's tools, for which a running response waits; they go when it ends or is deleted

    async def expect_outputs(self, tenant: str, response_id: str, fence: int, call_ids: Collection[str]) -> None:
        """These are pending from now on, but for those that have come already. Under another fence Lost is raised."""

    async def submit_output(self, tenant: str, response_id: str, call_id: str, output: bytes) -> Submission:
        """Once for each call, while the response runs and waits for it."""

    async def outputs(self, tenant: str, response_id: str) -> dict[str, bytes | None]:
        """Of all calls that it ever waited for; None: it is pending. Empty if there are none, or it has ended."""

    # ---- approvals: a call may be made once, and only as it was asked for

    async def ask_approval(self, tenant: str, request_id: str, digest: bytes, expires: float) -> None:
        """Asked again, the last one counts, unless it was used."""

    async def approval(self, tenant: str, request_id: str) -> Approval | None:
        """None: never asked for, or too long ago."""

    async def use_approval(self, tenant: str, request_id: str, digest: bytes) -> Verdict:
        """The call is about to be made. `ok` is answered once, whoever asks; after any other answer nothing changed."""

    # ---- conversations

    async def create_conversation(self, tenant: str, row: ConversationRow, items: Sequence[ItemRow]) -> None: ...

    async def conversation(self, tenant: str, conversation_id: str) -> ConversationRow | None: ...

    async def merge_metadata(
        self, tenant: str, conversation_id: str, changes: Mapping[str, str | None], most: int
    ) -> ConversationRow | None:
        """None deletes a key. Raises InvalidValue if there would be more than `most` pairs."""

    async def delete_conversation(self, tenant: str, conversation_id: str) -> bool:
        """Its items stay findable by `find_item` for as long as the store keeps a response."""

    async def add_items(self, tenant: str, conversation_id: str, items: Sequence[ItemRow], most: int) -> bool:
        """As one block, after all others. Raises InvalidValue beyond `most` items; False: no such conversation."""

    async def all_items(self, tenant: str, conversation_id: str) -> list[bytes] | None:
        """In order; None: no such conversation."""

    async def page_items(
        self, tenant: str, conversation_id: str, after: str | None, limit: int, descending: bool
    ) -> Page | None:
        """Raises InvalidValue(param="after") for a cursor that is not an item of this conversation."""

    async def item(self, tenant: str, conversation_id: str, item_id: str) -> bytes | None: ...

    async def delete_item(self, tenant: str, conversation_id: str, item_id: str) -> bool:
        """From this conversation only."""

    async def find_item(self, tenant: str, item_id: str) -> bytes | None:
        """In any conversation of the tenant."""

    # ---- lists of what a tenant has, by id; `after` is the last id of the page before

    async def page_responses(
        self, tenant: str, after: str | None, limit: int, descending: bool, room: int
    ) -> ResponsePage:
        """Those that `get` would find; no more than go into `room` bytes, but at least one.

        Raises InvalidValue(param="after") for a cursor that is no response of the tenant's, or not any more.
        """

    async def page_conversations(
        self, tenant: str, after: str | None, limit: int, descending: bool
    ) -> ConversationPage:
        """Raises InvalidValue likewise."""

    # ---- keys that let clients in; they are the operator's, and say whose a request is

    async def add_api_key(self, key: ApiKey) -> None: ...

    async def find_api_keys(self, ids: Collection[str]) -> list[ApiKey]:
        """Those of them that there are, revoked and expired ones too."""

    async def api_keys(self) -> list[ApiKey]:
        """All that ever were, in the order in which they were made."""

    async def has_api_keys(self) -> bool:
        """Was there ever one? A key that is revoked does not open the doors to everybody."""

    async def revoke_api_key(self, key_id: str) -> ApiKey | None:
        """From now on; doing it again changes nothing. None: there is none."""

    # ---- what all who share the store have in common

    async def shared(self, name: str, new: bytes) -> bytes:
        """The value under this name: `new`, if nobody was here before. It never changes, and nobody removes it."""

    # ---- retention

    async def sweep(self, bounds: Bounds, most: int = 500) -> int:
        """Remove what has expired and, oldest first, what is beyond the bounds; never what runs. At most `most` at a
        time; gives how many, so that the caller goes on while there are some."""

    async def tenants(self) -> dict[str, tuple[int, int]]:
        """Entries and bytes of each tenant, hidden rows included; the bytes are those of conversations too."""
