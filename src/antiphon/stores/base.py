"""The store protocol and its rows. `tenant` is the first argument of every method that touches tenant data.

Each method is one transaction: its changes are durable when it returns, or it raises and changes nothing. An id of
another tenant behaves exactly like an id that never existed. A store that cannot answer raises Unavailable within its
deadline.

The row of a response:

    begin ──▶ queued ──▶ in_progress ──▶ completed | incomplete | failed | cancelled      (finish, once)
                 └────── the lease names the owner; the fence decides whose writes are accepted ──────┘

The fence grows with every change of owner. `start`, `finish`, `append` and `release` under a fence other than the row's
raise OwnershipLost and change nothing. Times are seconds since the epoch.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Generic, Literal, Protocol, TypeVar

from msgspec import Struct
from msgspec.structs import replace

T = TypeVar("T")
RowStatus = Literal["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]
RUNNING_STATUSES: tuple[RowStatus, ...] = ("queued", "in_progress")


class OwnershipLost(Exception):
    """The response has another owner, has ended or was deleted: writes of its former owner are rejected."""


class NewResponse(Struct, frozen=True, kw_only=True):
    """The row of a response when it begins."""

    id: str
    status: RowStatus
    background: bool = False
    rank: int = 1  # background scheduling rank: 0 before 1 before 2
    charged_key: str = ""  # API key that is charged besides the tenant, for a response that waits in the background
    created: float
    deadline: float | None = None  # of a background response, for all attempts together
    previous: str | None = None
    conversation: str | None = None
    request: bytes  # what the response does not echo: the input and the fields without a counterpart
    response: bytes  # JSON


class Claim(Struct, frozen=True):
    """The owner of a response, and the time until which it counts as alive without a renewal."""

    owner: str
    until: float


class IdempotencyKey(Struct, frozen=True):
    """An Idempotency-Key and a digest of the request body that came with it."""

    name: str
    digest: bytes
    expires: float


class ItemRow(Struct, frozen=True):
    """An item of a conversation."""

    id: str
    item: bytes  # JSON


class ResponseEnd(Struct, frozen=True, kw_only=True):
    """The terminal state of a response.

    With `fence` 0 and `new`, the row was never begun and is written in one step.
    """

    id: str
    fence: int
    status: RowStatus
    response: bytes
    packed_log: bytes
    ended: float
    expires: float | None
    new: NewResponse | None = None
    conversation: str | None = None  # receives `items` as one block, if it still exists
    items: Sequence[ItemRow] = ()
    replaces_unconfirmed: bool = False  # an earlier end by this owner, whose failed write may have been committed


class StoredResponse(Struct, frozen=True, kw_only=True):
    """The stored row of a response."""

    id: str
    status: RowStatus
    background: bool
    created: float
    deadline: float | None
    previous: str | None
    conversation: str | None
    request: bytes
    response: bytes  # JSON; the terminal response, or the initial one while it runs
    packed_log: bytes | None  # None until it has ended
    fence: int
    attempts: int  # number of owners so far
    waited: bool = False  # whether it ever waited for outputs of client tools
    charged_key: str = ""


class ChainLink(Struct, frozen=True):
    """One response of a `previous_response_id` chain.

    It may be hidden: deleted by the client, but retained for its descendants.
    """

    id: str
    previous: str | None
    request: bytes
    response: bytes


class ClaimedResponse(Struct, frozen=True):
    """A response that was taken over by `Store.claim`."""

    tenant: str
    row: StoredResponse  # carries the new fence


class ConversationRow(Struct, frozen=True):
    id: str
    created: float
    metadata: dict[str, str]


class Page(Struct, Generic[T], frozen=True):
    rows: list[T]
    has_more: bool


class ApiKey(Struct, frozen=True, kw_only=True):
    """An API key of a client. Only its digest is stored."""

    id: str
    digest: bytes
    tenant: str
    name: str  # free text from the operator
    scopes: frozenset[str]
    created: float
    expires: float | None = None
    revoked: float | None = None


class RetentionBounds(Struct, frozen=True, kw_only=True):
    """Retention bounds per tenant; None means unlimited.

    Hidden rows do not count as entries, but their bytes count, as do the bytes of conversation items.
    """

    entries: int | None = None
    bytes: int | None = None
    conversations: int | None = None
    byte_overrides: Mapping[str, int | None] = {}  # byte bounds of tenants that differ from the default

    def apply_overrides(self, tenant: str) -> "RetentionBounds":
        """Return the bounds that hold for this tenant."""
        return replace(self, bytes=self.byte_overrides[tenant]) if tenant in self.byte_overrides else self


class Approval(Struct, frozen=True):
    """An approval that was requested from a client."""

    digest: bytes  # of the tool call, as it was requested
    used: bool


ApprovalVerdict = Literal["ok", "used", "changed", "unknown"]  # result of using an approval
# Result of submitting a tool output. "not pending": the response waits for other calls; "not waiting": it waits for
# none; "answered": the call already has an output; "ended": the response has ended.
OutputSubmission = Literal["taken", "not pending", "not waiting", "answered", "ended", "unknown"]


class SchemaStatus(Struct, frozen=True):
    """The schema version of a store."""

    current: int  # 0: no tables yet
    newest: int  # newest version that this server supports
    pending: list[str]  # names of the migrations that `open` would apply


class Store(Protocol):
    """Persistent storage for responses, conversations, approvals and API keys."""

    name: str

    async def open(self) -> None:
        """Connect and migrate the schema. Raises StartupError, also for a schema newer than this server supports."""

    async def close(self) -> None: ...

    async def schema(self) -> SchemaStatus:
        """Read the schema version without opening or changing the store. A newer schema is not an error here."""

    def is_healthy(self) -> bool:
        """Whether the last operation succeeded."""

    # ---- responses

    async def begin(
        self,
        tenant: str,
        new: NewResponse,
        claim: Claim,
        key: IdempotencyKey | None = None,
        max_background: int | None = None,
    ) -> str | None:
        """Write the row, with fence 1. If another response holds this key, return its id and write nothing.

        Raises KeyReused if the key was used with another body, UnknownPrevious if `previous` is not visible (or no
        longer), UnknownConversation likewise, and Busy if the tenant has `max_background` unfinished background
        responses.
        """

    async def keyed(self, tenant: str, key: IdempotencyKey) -> str | None:
        """Return the id of the response that holds this key, as `begin` does. Raises KeyReused likewise."""

    async def start(self, tenant: str, response_id: str, fence: int) -> None:
        """Change the status from queued to in_progress."""

    async def finish(self, tenant: str, end: ResponseEnd) -> None:
        """Write the terminal state and drop the live log's rows. Repeating it under the same fence has no effect.

        With `end.new`, raises UnknownPrevious like `begin`.
        """

    async def get(self, tenant: str, response_id: str) -> StoredResponse | None: ...

    async def chain(self, tenant: str, response_id: str, stop_at: frozenset[str] = frozenset()) -> list[ChainLink]:
        """Return the chain from this response back to the first, or up to an id in `stop_at` (exclusive).

        Empty if the response is unknown. The depth is unlimited. The first response must be visible; its ancestors may
        be hidden.
        """

    async def delete(self, tenant: str, response_id: str) -> bool:
        """Hide a response at once, and remove every row that no stored descendant needs.

        That includes hidden ancestors which only this response retained. A running response is deleted too; its owner
        gets OwnershipLost.
        """

    # ---- leases

    async def renew(self, claim: Claim, ids: Collection[str]) -> set[str]:
        """Renew the owner's lease on these responses. Returns the ids that are still running and still owned by it.

        Other responses are not renewed: a row whose begin or finish failed is taken over by the next `claim`.
        """

    async def claim(self, claim: Claim, max_background: int, released: bool = False) -> list[ClaimedResponse]:
        """Take over running responses whose lease has expired: all foreground ones, at most `max_background` others.

        With `released`, only responses that were given back by `release`.

        Background responses of the first rank come first, except for one in nine, which has a lower rank. Within a
        rank, the tenant with the fewest running responses comes first, and each tenant's oldest response. Every claimed
        response gets a new fence and one more attempt. No two callers get the same response. The result is ordered by
        age, oldest first.
        """

    async def take(self, tenant: str, response_id: str, claim: Claim) -> StoredResponse | None:
        """Take over this response from any owner, unless it has ended."""

    async def release(self, tenant: str, response_id: str, fence: int) -> None:
        """Give a response back: queued again, lease expired, and this attempt not counted."""

    # ---- the live log of a running response: batches, numbered 0, 1, 2 …

    async def append(self, tenant: str, response_id: str, fence: int, number: int, batch: bytes) -> None: ...

    async def read(self, tenant: str, response_id: str, after: int) -> list[bytes]:
        """Return the batches with numbers above `after` (−1: all)."""

    # ---- outputs of client tools that a running response waits for; they are removed when it ends or is deleted

    async def expect_outputs(self, tenant: str, response_id: str, fence: int, call_ids: Collection[str]) -> None:
        """Mark these calls as pending unless they already have an output. Raises OwnershipLost under another fence."""

    async def submit_output(self, tenant: str, response_id: str, call_id: str, output: bytes) -> OutputSubmission:
        """Store the output of a call. Accepted once per call, while the response runs and waits for it."""

    async def outputs(self, tenant: str, response_id: str) -> dict[str, bytes | None]:
        """Return the outputs of all calls the response ever waited for; None marks a pending one.

        Empty if there are none or the response has ended.
        """

    # ---- approvals: a call may be made once, and only as it was requested

    async def ask_approval(self, tenant: str, request_id: str, digest: bytes, expires: float) -> None:
        """Record an approval request. A repeated request replaces the earlier one unless that was used."""

    async def approval(self, tenant: str, request_id: str) -> Approval | None:
        """Return the approval; None if it was never requested or has expired."""

    async def use_approval(self, tenant: str, request_id: str, digest: bytes) -> ApprovalVerdict:
        """Consume the approval right before the call is made.

        Returns "ok" exactly once, across all callers; any other result changes nothing.
        """

    # ---- conversations

    async def create_conversation(self, tenant: str, row: ConversationRow, items: Sequence[ItemRow]) -> None: ...

    async def conversation(self, tenant: str, conversation_id: str) -> ConversationRow | None: ...

    async def merge_metadata(
        self, tenant: str, conversation_id: str, changes: Mapping[str, str | None], max_pairs: int
    ) -> ConversationRow | None:
        """Merge changes into the metadata; None deletes a key. Raises InvalidValue above `max_pairs` pairs."""

    async def delete_conversation(self, tenant: str, conversation_id: str) -> bool:
        """Delete a conversation. `find_item` still finds its items for as long as the store retains a response."""

    async def add_items(self, tenant: str, conversation_id: str, items: Sequence[ItemRow], max_items: int) -> bool:
        """Append the items as one block. Returns False if there is no such conversation.

        Raises InvalidValue above `max_items` items.
        """

    async def all_items(self, tenant: str, conversation_id: str) -> list[bytes] | None:
        """Return all items in order; None if there is no such conversation."""

    async def page_items(
        self, tenant: str, conversation_id: str, after: str | None, limit: int, descending: bool
    ) -> Page[ItemRow] | None:
        """Return one page. Raises InvalidValue(param="after") if the cursor is not an item of this conversation."""

    async def item(self, tenant: str, conversation_id: str, item_id: str) -> bytes | None: ...

    async def delete_item(self, tenant: str, conversation_id: str, item_id: str) -> bool:
        """Remove an item from this conversation only."""

    async def find_item(self, tenant: str, item_id: str) -> bytes | None:
        """Find an item in any conversation of the tenant."""

    # ---- lists per tenant, ordered by id; `after` is the last id of the previous page

    async def page_responses(
        self, tenant: str, after: str | None, limit: int, descending: bool, max_bytes: int
    ) -> Page[StoredResponse]:
        """Return the responses that `get` would find, up to `max_bytes` bytes in total, but at least one.

        Raises InvalidValue(param="after") if the cursor is not, or no longer, a response of the tenant.
        """

    async def page_conversations(
        self, tenant: str, after: str | None, limit: int, descending: bool
    ) -> Page[ConversationRow]:
        """Return one page of conversations. Raises InvalidValue likewise."""

    # ---- API keys of clients; the operator manages them, and they determine the tenant of a request

    async def add_api_key(self, key: ApiKey) -> None: ...

    async def find_api_keys(self, ids: Collection[str]) -> list[ApiKey]:
        """Return the keys that exist among these ids, including revoked and expired ones."""

    async def api_keys(self) -> list[ApiKey]:
        """Return all keys ever created, in order of creation."""

    async def has_api_keys(self) -> bool:
        """Whether a key was ever created. Revoking the last key does not open the server to unauthenticated clients."""

    async def revoke_api_key(self, key_id: str) -> ApiKey | None:
        """Revoke a key from now on; repeating it changes nothing. Returns None if there is no such key."""

    # ---- values shared by all servers on this store

    async def shared(self, name: str, new: bytes) -> bytes:
        """Return the value under this name, storing `new` if there is none.

        A stored value never changes and is never removed.
        """

    # ---- retention

    async def sweep(self, bounds: RetentionBounds, limit: int = 500) -> int:
        """Remove expired rows and, oldest first, rows above the bounds; never running responses.

        Removes at most `limit` rows and returns their number, so the caller repeats while it is not 0.
        """

    async def tenants(self) -> dict[str, tuple[int, int]]:
        """Return entries and bytes per tenant. Hidden rows are included, and the bytes include conversations."""
