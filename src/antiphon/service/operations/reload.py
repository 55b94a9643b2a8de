"""The settings are read again while we serve: engines join, change or leave, names and bounds follow.

Nothing that runs is cut off: an engine that leaves ends what it does. Settings that cannot be followed are named in the
log and stay as they were. If something is wrong with the new ones, that is said in the log, and nothing changes.
"""

import asyncio
import logging
from collections.abc import Callable

from msgspec.structs import replace

from antiphon.config import Config
from antiphon.config.help_text import FAKE, LLAMACPP, MODEL
from antiphon.config.key_settings import given_keys
from antiphon.config.sources import settings
from antiphon.config.toml_tables import TABLES
from antiphon.engines.factory import about, reads_of, seats
from antiphon.engines.pool import Pool
from antiphon.errors import StartupError
from antiphon.parsers.detection import check_reads
from antiphon.service.access.api_keys import Keys
from antiphon.service.access.rate_limits import Quotas
from antiphon.service.model_io.models import Models, naming

log = logging.getLogger(__name__)

_FOLLOWED = {MODEL.title, LLAMACPP.title, FAKE.title}
_OTHERS = {"queue", "config", "api_key", "api_key_file", "quota", *TABLES}


class Reloading:
    """`again` reads them; StartupError for what does not fit."""

    def __init__(
        self,
        config: Config,
        again: Callable[[], Config],
        pool: Pool,
        models: Models,
        keys: Keys | None = None,
        quotas: Quotas | None = None,
    ) -> None:
        self._config = config
        self._again = again
        self._pool = pool
        self._models = models
        self._keys = keys or Keys()
        self._quotas = quotas or Quotas()
        self._one = asyncio.Lock()

    async def read(self) -> None:
        async with self._one:
            try:
                wanted, stays = self._looked_through(self._again())
                keys = given_keys(wanted)
            except StartupError as error:
                log.error("The settings are left as they were: %s", error)
                return
            self._keys.renew(keys)  # who is to be kept out does not wait for engines
            try:
                await self._follow(wanted)
            except StartupError as error:
                log.error("The keys of clients were read again; all else is left as it was: %s", error)
                return
        if stays:
            log.warning("A restart is needed for what else has changed: %s", ", ".join(stays))

    def _looked_through(self, wanted: Config) -> tuple[Config, list[str]]:
        """As far as they can be followed, and the names of those that cannot. Raises StartupError for all that can be
        found wrong without opening anything, so that nobody follows the half of it."""
        stays = [name for name in _lasting() if getattr(wanted, name) != getattr(self._config, name)]
        config = replace(wanted, **{name: getattr(self._config, name) for name in stays})
        naming(config)
        check_reading(config)
        for seat in seats(config):
            seat.build()
        return config, stays

    async def _follow(self, config: Config) -> None:
        change = await self._pool.renew(seats(config))
        self._models.renew(naming(config), config.queue)
        self._quotas.renew(config.quota, config.tenants)
        self._config = config
        came, went = ", ".join(change.joined) or "none", ", ".join(change.left) or "none"
        log.info("The settings were read again; engines that joined: %s, that leave: %s", came, went)


def check_reading(config: Config) -> None:
    """StartupError for the name of a format that nobody knows."""
    for number, spec in enumerate(config.specs):
        with about(config, number):
            check_reads(reads_of(config, spec))


def _lasting() -> list[str]:
    """What holds until a restart."""
    follow = {row.name for row in settings().values() if row.note.group in _FOLLOWED} | _OTHERS
    return [name for name in Config.__struct_fields__ if name not in follow]
