"""Reload of the settings at runtime: engines join, change or leave; names and limits follow.

Active work is not interrupted: a leaving engine finishes its runs. Settings that need a restart are logged and stay
unchanged. If the new settings are invalid, this is logged and nothing changes.
"""

import asyncio
import logging
from collections.abc import Callable

from msgspec import Struct, field

from antiphon.config import Config
from antiphon.config.key_settings import load_configured_keys
from antiphon.config.settings import settings
from antiphon.engines.factory import build_member_specs, choose_parsers, name_engine_in_errors
from antiphon.engines.pool import EnginePool
from antiphon.errors import StartupError
from antiphon.parsers.detection import get_configured_format
from antiphon.service.access.api_keys import ApiKeys
from antiphon.service.access.rate_limits import RateLimits
from antiphon.service.model_io.models import Models, make_naming

log = logging.getLogger(__name__)

_RELOADABLE_GROUPS = {"Model", "Engines llamacpp and openvino", "Engine openvino", "Engine fake", "Quotas"}
_RELOADABLE_SETTINGS = {"queue", "config", "api_key", "api_key_file"}


class SettingsReloader(Struct, eq=False):
    _config: Config
    _load_config: Callable[[], Config]  # raises StartupError if the settings are invalid
    _pool: EnginePool
    _models: Models
    _keys: ApiKeys
    _rate_limits: RateLimits
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def reload(self) -> None:
        async with self._lock:
            try:
                # in a thread: engines with a web address are identified
                config, unapplied = self._check(await asyncio.to_thread(self._load_config))
                keys = load_configured_keys(config)
            except StartupError as error:
                log.error("The settings were not reloaded: %s", error)
                return
            self._keys.replace_configured(keys)  # revoked keys take effect without waiting for engines
            try:
                await self._apply(config)
            except StartupError as error:
                log.error("Only the API keys were reloaded, the other settings were not: %s", error)
                return
        if unapplied:
            log.warning("These changed settings need a restart: %s", ", ".join(unapplied))

    def _check(self, loaded: Config) -> tuple[Config, list[str]]:
        """Return the applicable settings and the names of changed ones that need a restart.

        Raises StartupError for all that can be checked without opening anything, so that no half is applied.
        """
        unapplied = [
            row.name
            for row in settings().values()
            if row.group not in _RELOADABLE_GROUPS
            and row.name not in _RELOADABLE_SETTINGS
            and loaded.get(row.name) != self._config.get(row.name)
        ]
        config = loaded.with_settings(**{name: self._config.get(name) for name in unapplied})
        make_naming(config)
        check_output_formats(config)
        for member in build_member_specs(config):
            member.build()
        return config, unapplied

    async def _apply(self, config: Config) -> None:
        joined, leaving = await self._pool.update_members(build_member_specs(config))
        self._models.configure(make_naming(config), config.server.queue)
        self._rate_limits.configure(config.quota, config.tenants)
        self._config = config
        names = [", ".join(engines) or "none" for engines in (joined, leaving)]
        log.info("Settings reloaded; engines joined: %s, leaving: %s", *names)


def check_output_formats(config: Config) -> None:
    """Raise StartupError for an unknown output format name."""
    for number, spec in enumerate(config.inference.specs):
        with name_engine_in_errors(config, number):
            get_configured_format(choose_parsers(config, spec))
