"""Reloading of settings: the settings that are applied, those that need a restart, and the log lines about both."""

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from antiphon.config import Config
from antiphon.config.engines import EngineSpec, ModelSpec
from antiphon.config.key_settings import load_configured_keys
from antiphon.config.rate_limits import QuotaSettings, TenantSpec
from antiphon.engines.factory import build_pool
from antiphon.engines.fake.engine import FakeEngine
from antiphon.engines.pool import EnginePool
from antiphon.errors import StartupError
from antiphon.service.access.api_keys import ApiKeys, Principal
from antiphon.service.access.rate_limits import RateLimits
from antiphon.service.model_io.models import Models, make_naming
from antiphon.service.operations.reload import SettingsReloader

pytestmark = pytest.mark.anyio


class ReloadableServer:
    """The parts of a server that follow its settings. `reload` applies new settings, or a configuration error."""

    def __init__(self, config: Config) -> None:
        self.config: Config | StartupError = config
        self.pool: EnginePool = build_pool(config)
        self.models = Models(self.pool, naming=make_naming(config), queue=config.server.queue)
        self.rate_limits = RateLimits()
        self.keys = ApiKeys(load_configured_keys(config))
        self._reloader = SettingsReloader(
            config, self._load_config, self.pool, self.models, self.keys, self.rate_limits
        )

    async def reload(self, config: Config | StartupError) -> None:
        self.config = config
        await self._reloader.reload()

    def list_engines(self) -> list[str]:
        return [member.name for member in self.pool.members()]

    def _load_config(self) -> Config:
        if isinstance(self.config, StartupError):
            raise self.config
        return self.config


@asynccontextmanager
async def start_server(**settings: Any) -> AsyncIterator[ReloadableServer]:
    server = ReloadableServer(Config.from_settings(**{"engine": "fake", **settings}))
    await server.pool.open()
    try:
        yield server
    finally:
        await server.pool.close()


async def test_engines_are_added_and_removed_by_a_reload() -> None:
    async with start_server() as server:
        (first,) = server.pool.members()
        await server.reload(Config.from_settings(engine=("fake", "fake")))
        assert server.list_engines() == ["fake", "fake-2"]
        assert server.pool.members()[0] is first
        await server.reload(Config.from_settings(engine="fake", fake_rate=5.0))
        (changed,) = server.pool.members()
        assert changed is not first
        assert isinstance(changed.engine, FakeEngine)
        assert changed.engine.settings.rate == 5.0


async def test_an_engine_is_drained_by_its_drain_setting() -> None:
    tables = (EngineSpec(url="fake", name="a"), EngineSpec(url="fake", name="b", models=("x",)))
    async with start_server(engines=tables) as server:
        await server.reload(
            Config.from_settings(engines=(tables[0], EngineSpec(url="fake", name="b", models=("x",), drain=True)))
        )
        assert [(state.name, state.draining) for state in server.pool.statuses()] == [("a", False), ("b", True)]


async def test_names_and_output_limits_are_reloaded() -> None:
    async with start_server(served_model_name=("mine",), max_output_tokens=9) as server:
        await server.reload(
            Config.from_settings(
                engine="fake",
                alias=("fast=fake",),
                models={"fast": ModelSpec(max_output_tokens=3)},
                max_output_tokens=5,
                default_output_tokens=2,
            )
        )
        found = server.models.find("fast")
        assert (found.name, found.model) == ("fast", "fake")
        assert found.output_limits is not None
        assert (found.output_limits.maximum, found.output_limits.default) == (3, 2)
        other = server.models.find("fake").output_limits
        assert other is not None
        assert (other.maximum, other.default) == (5, 2)
        assert [model.id for model in server.models.models()] == ["fake", "fast"]


async def test_quotas_are_reloaded_at_once() -> None:
    async with start_server() as server:
        await server.reload(Config.from_settings(engine="fake", quota=QuotaSettings(requests_per_minute=5)))
        limit_set = server.rate_limits.get_limits(Principal(tenant="acme"))
        limit_set.admit(1)
        tenants = {"acme": TenantSpec(requests_per_minute=9, background_queue=2)}
        await server.reload(
            Config.from_settings(engine="fake", quota=QuotaSettings(requests_per_minute=5), tenants=tenants)
        )
        requests, _ = server.rate_limits.get_limits(Principal(tenant="acme")).get_status()
        assert requests is not None
        assert (requests.limit, requests.remaining) == (9, 8)
        assert server.rate_limits.get_background_limit("acme") == 2


async def test_settings_that_need_a_restart_are_logged_and_unchanged(caplog: pytest.LogCaptureFixture) -> None:
    async with start_server() as server:
        with caplog.at_level(logging.INFO):
            await server.reload(
                Config.from_settings(engine=("fake", "fake"), port=1, idle_timeout=1.0, api_key=("hush",))
            )
        assert caplog.messages[-1] == "These changed settings need a restart: port, idle_timeout"
        assert "fake-2" in caplog.messages[-2]
        assert server.list_engines() == ["fake", "fake-2"]
        assert "hush" not in caplog.text
        await server.reload(Config.from_settings(engine="fake", port=1, idle_timeout=1.0, api_key=("hush",)))
        assert server.list_engines() == ["fake"]


async def test_engines_ignore_changed_settings_that_need_a_restart() -> None:
    """The idle timeout of runs is also a setting of engines."""
    async with start_server(engine="vllm://127.0.0.1:9") as server:
        (first,) = server.pool.members()
        await server.reload(Config.from_settings(engine=("vllm://127.0.0.1:9", "fake"), idle_timeout=1.0))
        assert server.pool.members()[0] is first


@pytest.mark.parametrize(
    "invalid",
    [
        StartupError("antiphon.toml is not valid TOML."),
        Config.from_settings(engine=("fake", "steam")),
        Config.from_settings(engine=("vllm://a", "vllm://b"), engine_key="whose"),
        Config.from_settings(engine="fake", alias=("a=b", "b=c")),
        Config.from_settings(engine="fake", tool_call_parser="smoke"),
        Config.from_settings(engine="fake", api_key_file=Path("no-such-file")),
        Config.from_settings(engines=(EngineSpec(url="vllm://gpu:x"),)),
        Config.from_settings(engines=(EngineSpec(url="vllm+https://gpu", ca=Path("no-such-file")),)),
    ],
)
async def test_invalid_settings_change_nothing_not_even_keys(
    invalid: Config | StartupError, caplog: pytest.LogCaptureFixture
) -> None:
    async with start_server(alias=("fast=fake",), api_key=("first",)) as server:
        before = server.pool.members()
        await server.reload(
            invalid if isinstance(invalid, StartupError) else invalid.with_settings(api_key=("second",))
        )
        assert caplog.messages[-1].startswith("The settings were not reloaded: ")
        assert server.pool.members() == before
        assert server.models.find("fast").model == "fake"
        assert (server.keys.find(b"first") is not None, server.keys.find(b"second")) == (True, None)


async def test_an_engine_that_cannot_be_opened_prevents_all_changes_but_keys(
    caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    async with start_server(engine=("fake",), api_key=("first",)) as server:
        script = tmp_path / "none.toml"
        await server.reload(
            Config.from_settings(engine=("fake", "fake"), fake_script=script, alias=("x=fake",), api_key=("second",))
        )
        assert caplog.messages[-1].startswith("Only the API keys were reloaded, the other settings were not: ")
        assert "none.toml" in caplog.messages[-1]
        assert (server.keys.find(b"first"), server.keys.find(b"second") is not None) == (None, True), (
            "the keys are replaced, as logged"
        )
        assert server.list_engines() == ["fake"]
        assert [model.id for model in server.models.models()] == ["fake"], "the aliases are unchanged"
