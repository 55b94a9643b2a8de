"""Settings of what is kept, and of what runs in the background."""

from typing import Annotated

from antiphon.config.areas.models import ModelSettings
from antiphon.config.help_text import STORE
from antiphon.config.value_types import Count, Interval, Name, Seconds
from antiphon.config.xdg import data_home


class StoreSettings(ModelSettings, frozen=True, kw_only=True):
    store: Annotated[
        Name | None,
        STORE(
            "Where responses and conversations are kept: a file (SQLite), postgresql://…, or memory.",
            "$XDG_DATA_HOME/antiphon/antiphon.db",
        ),
    ] = None
    disable_store: Annotated[bool, STORE("Keep nothing: `store` is taken as false everywhere.")] = False
    store_ttl: Annotated[Seconds, STORE("Seconds that an ended response is kept.", "2592000, 30 days")] = 2_592_000.0
    store_max_entries: Annotated[
        Count | None, STORE("Responses kept of each tenant; beyond, the oldest go.", "no bound")
    ] = None
    store_max_bytes: Annotated[
        Count | None,
        STORE("Bytes kept of each tenant; beyond, the oldest responses go.", "10 GiB; in memory 512 MiB"),
    ] = None
    conversation_max_entries: Annotated[
        Count, STORE("Conversations kept of each tenant; beyond, those longest unused go.")
    ] = 100_000
    live: Annotated[
        Name | None,
        STORE("Where running responses are followed across processes: redis://….", "the store"),
    ] = None
    keep_streams: Annotated[
        Interval,
        STORE("Seconds that a stream whose client is gone runs on, so that it can be taken up again; 0 cancels it."),
    ] = 0.0
    max_active_sessions: Annotated[Count, STORE("Responses that may run at once; beyond, 429.")] = 2000
    background_queue: Annotated[Count, STORE("Background responses of each tenant that may wait or run.")] = 1000
    background_slots: Annotated[Count, STORE("Background responses that this process runs at once.")] = 16
    background_timeout: Annotated[
        Seconds, STORE("Seconds from its creation in which a background response must have ended.")
    ] = 86_400.0
    background_attempts: Annotated[
        Count, STORE("Servers that may die of a background response before it is given up.")
    ] = 5
    lease_seconds: Annotated[
        Seconds, STORE("Seconds without a sign of life after which a server's responses are taken over.")
    ] = 15.0

    @property
    def store_place(self) -> str:
        """Without a store there is still one in memory, in which nothing is ever kept."""
        return "memory" if self.disable_store else self.store or str(data_home() / "antiphon.db")
