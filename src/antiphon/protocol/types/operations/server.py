"""The state of the process that answers, for operators, as far as other routes do not show it. An extension."""

from typing import Literal

from msgspec import Struct


class QueueState(Struct, frozen=True, kw_only=True):
    model: str
    running: int
    slots: int
    waiting: dict[str, int]  # by service tier


class SheddingState(Struct, frozen=True, kw_only=True):
    stage: Literal["none", "background", "all"]  # the work that is rejected
    reason: str | None
    loads: dict[str, float]  # by cause; at 1 all new work is rejected


class StoreState(Struct, frozen=True, kw_only=True):
    """Sizes are of all tenants, as of the last minute."""

    kind: str
    healthy: bool
    bytes: int
    responses: int


class ServerSample(Struct, frozen=True, kw_only=True):
    """`responses` to `output_tokens` count what ended since the sample before."""

    at: float
    running: int
    waiting: int
    responses: int
    failed: int
    input_tokens: int
    cached_tokens: int
    output_tokens: int
    memory_bytes: int | None


class ServerStatus(Struct, frozen=True, kw_only=True):
    object: Literal["server.status"] = "server.status"
    version: str
    started_at: float
    running: int  # responses that are being generated
    waiting: int  # responses that wait for a slot
    queues: list[QueueState]
    shedding: SheddingState
    store: StoreState
    sample_seconds: float
    samples: list[ServerSample]  # of the last hour, the oldest first
