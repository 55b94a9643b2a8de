"""Settings of the store and of background responses."""

from typing import Annotated

from msgspec import Struct

from antiphon.config.help_text import STORE
from antiphon.config.value_types import Count, Interval, Name, Seconds
from antiphon.config.xdg import data_home


class StorageSettings(Struct, frozen=True, kw_only=True):
    """The store, the live log, and background responses."""

    store: Annotated[
        Name | None,
        STORE(
            "Store of responses and conversations: a file (SQLite), postgresql://…, or memory.",
            "$XDG_DATA_HOME/antiphon/antiphon.db",
        ),
    ] = None
    disable_store: Annotated[bool, STORE("Store nothing: `store` is treated as false in all requests.")] = False
    store_ttl: Annotated[Seconds, STORE("Seconds to keep an ended response.", "2592000, 30 days")] = 2_592_000.0
    store_max_entries: Annotated[
        Count | None, STORE("Maximum number of stored responses per tenant; the oldest are deleted.", "no limit")
    ] = None
    store_max_bytes: Annotated[
        Count | None,
        STORE(
            "Maximum number of stored bytes per tenant; the oldest responses are deleted.", "10 GiB; in memory 512 MiB"
        ),
    ] = None
    conversation_max_entries: Annotated[
        Count, STORE("Maximum number of stored conversations per tenant; the least recently used are deleted.")
    ] = 100_000
    live: Annotated[
        Name | None,
        STORE("Live log, by which processes follow each other's running responses: redis://….", "the store"),
    ] = None
    keep_streams: Annotated[
        Interval,
        STORE("Seconds that a stream continues after its client disconnects, so that it can be resumed; 0 cancels it."),
    ] = 0.0
    max_active_sessions: Annotated[Count, STORE("Maximum number of running responses; more are rejected with 429.")] = (
        2000
    )
    background_queue: Annotated[
        Count, STORE("Maximum number of waiting or running background responses per tenant.")
    ] = 1000
    background_slots: Annotated[Count, STORE("Maximum number of background responses that one process runs.")] = 16
    background_timeout: Annotated[
        Seconds, STORE("Time limit of a background response, in seconds from its creation.")
    ] = 86_400.0
    background_attempts: Annotated[
        Count, STORE("Attempts before a background response that keeps crashing its server is failed.")
    ] = 5
    lease_seconds: Annotated[
        Seconds, STORE("Seconds without a heartbeat after which other servers take over a server's responses.")
    ] = 15.0

    @property
    def store_location(self) -> str:
        """Location of the store. With `disable_store` it is an in-memory store that stays empty."""
        return "memory" if self.disable_store else self.store or str(data_home() / "antiphon.db")
