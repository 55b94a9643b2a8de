"""Rows of a store, whose methods `stores/sql/store.py` describes. Times are seconds since the epoch."""

from collections.abc import Mapping, Sequence
from typing import Generic, Literal, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from antiphon.protocol.types.lists import ListQuery

T = TypeVar("T")
RowStatus = Literal["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]
RUNNING_STATUSES: tuple[RowStatus, ...] = ("queued", "in_progress")
UploadStatus = Literal["pending", "completed", "cancelled"]
ContainerState = Literal["starting", "running", "ended"]


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
    model: str = ""


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
    summary: str = ""  # what the response consists of, without its contents: JSON for lists
    new: NewResponse | None = None
    conversation: str | None = None  # receives `items` as one block, if it still exists
    items: Sequence[ItemRow] = ()
    replaces_unconfirmed: bool = False  # an earlier end by this owner, whose failed write may have been committed
    images: Sequence[str] = ()  # keys of the images of the response, which are in the content store
    image_bytes: int = 0


class StoredResponse(Struct, frozen=True):
    """The stored row of a response, with its columns in the order in which they are selected."""

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


class SummaryRow(Struct, frozen=True):
    """A response without its contents, with its columns in the order in which they are selected."""

    id: str
    status: RowStatus
    background: bool
    created: float
    ended: float | None
    previous: str | None
    conversation: str | None
    model: str  # empty in rows of earlier versions
    summary: str  # empty while it runs


class SummaryFilter(Struct, frozen=True, kw_only=True):
    """The responses that a list has; an empty field does not restrict it."""

    statuses: frozenset[str] = frozenset()
    model: str | None = None
    background: bool | None = None


class SummaryPage(Struct, frozen=True):
    """A page of a filtered list: after a bounded search it may be short, or empty, although there is more."""

    rows: list[SummaryRow]
    next_after: str | None  # cursor of the next page; None: this is the last one


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


class PageQuery(Struct, frozen=True, kw_only=True):
    """A page of a list that is ordered by creation time."""

    after: str | None = None
    before: str | None = None
    limit: int = 20
    descending: bool = True

    @classmethod
    def read(cls, query: ListQuery) -> "PageQuery":
        before = getattr(query, "before", None)
        return cls(after=query.after, before=before, limit=query.limit, descending=query.order == "desc")


class FileRow(Struct, frozen=True, kw_only=True):
    """A file of a client, with its columns in the order in which they are selected."""

    id: str
    created: float
    expires: float | None
    size: int  # in bytes
    filename: str
    purpose: str
    digest: bytes  # SHA-256 of its content
    content: str  # key of its content in the content store


class UploadRow(Struct, frozen=True, kw_only=True):
    """A file that arrives in parts, with its columns in the order in which they are selected."""

    id: str
    created: float
    expires: float
    status: UploadStatus
    size: int  # in bytes
    filename: str
    purpose: str
    lifetime: int | None  # seconds until the file expires
    file: str | None = None  # the id of the file, once it is complete


class ContainerRow(Struct, frozen=True, kw_only=True):
    """A container in which code runs, with its columns in the order in which they are selected."""

    id: str
    created: float
    name: str
    memory: str  # as requested: 1g, 4g, 16g, 64g
    minutes: int  # without use, after which it expires
    last_active: float
    expires: float
    sandbox: str  # name of the sandbox that has it
    state: ContainerState = "starting"  # ended: it has expired, or was lost with its sandbox
    domains: str = ""  # that its code may reach, separated by blanks
    skills: str = "[]"  # those that it was made with, as JSON


class ContainerFileRow(Struct, frozen=True, kw_only=True):
    """A file of a container, with its columns in the order in which they are selected."""

    id: str
    created: float
    size: int  # in bytes
    path: str  # below /mnt/data
    source: str  # user or assistant


class SkillRow(Struct, frozen=True, kw_only=True):
    """A skill, with its columns in the order in which they are selected."""

    id: str
    created: float
    name: str
    description: str
    default_version: int
    latest_version: int


class SkillVersionRow(Struct, frozen=True, kw_only=True):
    """A version of a skill, with its columns in the order in which they are selected."""

    id: str
    skill: str  # id of the skill
    created: float
    version: int = 0  # set by the store
    name: str
    description: str
    size: int  # in bytes, of the zip file
    digest: bytes  # SHA-256 of the zip file
    content: str  # key of the zip file in the content store


class FileQuota(Struct, frozen=True):
    """Limits on the files of one tenant."""

    files: int
    bytes: int


class Page(Struct, Generic[T], frozen=True):
    rows: list[T]
    has_more: bool


class ApiKey(Struct, frozen=True):
    """An API key of a client. Only its digest is stored."""

    id: str
    digest: bytes
    tenant: str
    name: str  # free text from the operator
    scopes: frozenset[str]
    created: float
    expires: float | None = None
    revoked: float | None = None


class UsageRow(Struct, frozen=True):
    """The usage of a key on a day, with its columns in the order in which they are selected."""

    day: int  # days since 1970, UTC
    tenant: str
    key: str  # id of the key; empty without one
    responses: int
    input_tokens: int
    cached_tokens: int
    output_tokens: int


class RetentionBounds(Struct, frozen=True, kw_only=True):
    """Retention bounds per tenant; None means unlimited.

    Hidden rows do not count as entries, but their bytes count, as do the bytes of conversation items.
    """

    entries: int | None = None
    bytes: int | None = None
    conversations: int | None = None
    byte_overrides: Mapping[str, int | None] = {}  # byte bounds of tenants that differ from the default

    def apply_overrides(self, tenant: str) -> "RetentionBounds":
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
