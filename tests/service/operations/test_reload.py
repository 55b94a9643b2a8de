"""The settings are read again: what is followed, what is not, and what is said of it."""

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from antiphon.config import Config
from antiphon.config.engines import EngineSpec, ModelSpec
from antiphon.config.key_settings import given_keys
from antiphon.config.rate_limits import Quota, TenantSpec
from antiphon.engines.factory import build_pool
from antiphon.engines.fake.engine import FakeEngine
from antiphon.engines.pool import Pool
from antiphon.errors import StartupError
from antiphon.service.access.api_keys import Keys
from antiphon.service.access.principal import Principal
from antiphon.service.access.rate_limits import Quotas
from antiphon.service.model_io.models import Models, naming
from antiphon.service.operations.reload import Reloading

pytestmark = pytest.mark.anyio


class Served:
    """A server's engines and models; `says` is what the settings are from now on."""

    def __init__(self, config: Config) -> None:
        self.config: Config | StartupError = config
        self.pool: Pool = build_pool(config)
        self.models = Models([self.pool], naming=naming(config), queue=config.queue)
        self.quotas = Quotas()
        self.keys = Keys(given_keys(config))
        self._reloading = Reloading(config, self._again, self.pool, self.models, self.keys, self.quotas)

    async def says(self, config: Config | StartupError) -> None:
        self.config = config
        await self._reloading.read()

    def engines(self) -> list[str]:
        return [member.name for member in self.pool.members()]

    def _again(self) -> Config:
        if isinstance(self.config, StartupError):
            raise self.config
        return self.config


@asynccontextmanager
async def served(**settings: Any) -> AsyncIterator[Served]:
    one = Served(Config(**{"engine": "fake", **settings}))
    await one.pool.open()
    try:
        yield one
    finally:
        await one.pool.close()


async def test_engines_come_and_go_with_the_settings() -> None:
    async with served() as one:
        (first,) = one.pool.members()
        await one.says(Config(engine=("fake", "fake")))
        assert one.engines() == ["fake", "fake-2"]
        assert one.pool.members()[0] is first
        await one.says(Config(engine="fake", fake_rate=5.0))
        (changed,) = one.pool.members()
        assert changed is not first
        assert isinstance(changed.engine, FakeEngine)
        assert changed.engine.settings.rate == 5.0


async def test_one_engine_is_drained_by_a_word_in_the_file() -> None:
    tables = (EngineSpec(url="fake", name="a"), EngineSpec(url="fake", name="b", models=("x",)))
    async with served(engines=tables) as one:
        await one.says(Config(engines=(tables[0], EngineSpec(url="fake", name="b", models=("x",), drain=True))))
        assert [(state.name, state.draining) for state in one.pool.states()] == [("a", False), ("b", True)]


async def test_names_and_bounds_follow() -> None:
    async with served(served_model_name=("mine",), max_output_tokens=9) as one:
        await one.says(
            Config(
                engine="fake",
                alias=("fast=fake",),
                models={"fast": ModelSpec(max_output_tokens=3)},
                max_output_tokens=5,
                default_output_tokens=2,
            )
        )
        found = one.models.find("fast")
        assert (found.name, found.model) == ("fast", "fake")
        assert found.room is not None
        assert (found.room.most, found.room.default) == (3, 2)
        other = one.models.find("fake").room
        assert other is not None
        assert (other.most, other.default) == (5, 2)
        assert [model.id for model in one.models.models()] == ["fake", "fast"]


async def test_quotas_follow_at_once() -> None:
    async with served() as one:
        await one.says(Config(engine="fake", quota=Quota(requests_per_minute=5)))
        account = one.quotas.account(Principal(tenant="acme"))
        account.admit(1)
        tenants = {"acme": TenantSpec(requests_per_minute=9, background_queue=2)}
        await one.says(Config(engine="fake", quota=Quota(requests_per_minute=5), tenants=tenants))
        requests, _ = one.quotas.account(Principal(tenant="acme")).standing()
        assert requests is not None
        assert (requests.limit, requests.remaining) == (9, 8)
        assert one.quotas.background_room("acme") == 2


async def test_what_needs_a_restart_is_named_and_stays(caplog: pytest.LogCaptureFixture) -> None:
    async with served() as one:
        with caplog.at_level(logging.INFO):
            await one.says(Config(engine=("fake", "fake"), port=1, idle_timeout=1.0, api_key=("hush",)))
        assert caplog.messages[-1] == "A restart is needed for what else has changed: port, idle_timeout"
        assert "fake-2" in caplog.messages[-2]
        assert one.engines() == ["fake", "fake-2"]
        assert "hush" not in caplog.text
        await one.says(Config(engine="fake", port=1, idle_timeout=1.0, api_key=("hush",)))
        assert one.engines() == ["fake"]


async def test_engines_do_not_half_follow_what_needs_a_restart() -> None:
    """A deadline of runs is one of engines too."""
    async with served(engine="vllm://127.0.0.1:9") as one:
        (first,) = one.pool.members()
        await one.says(Config(engine=("vllm://127.0.0.1:9", "fake"), idle_timeout=1.0))
        assert one.pool.members()[0] is first


@pytest.mark.parametrize(
    "wrong",
    [
        StartupError("antiphon.toml is not valid TOML."),
        Config(engine=("fake", "steam")),
        Config(engine=("vllm://a", "vllm://b"), engine_key="whose"),
        Config(engine="fake", alias=("a=b", "b=c")),
        Config(engine="fake", tool_call_parser="smoke"),
        Config(engine="fake", api_key_file=Path("no-such-file")),
        Config(engines=(EngineSpec(url="vllm://gpu:x"),)),
        Config(engines=(EngineSpec(url="vllm+https://gpu", ca=Path("no-such-file")),)),
    ],
)
async def test_settings_that_are_wrong_change_nothing_not_even_keys(
    wrong: Config | StartupError, caplog: pytest.LogCaptureFixture
) -> None:
    async with served(alias=("fast=fake",), api_key=("first",)) as one:
        before = one.pool.members()
        await one.says(wrong if isinstance(wrong, StartupError) else replace(wrong, api_key=("second",)))
        assert caplog.messages[-1].startswith("The settings are left as they were: ")
        assert one.pool.members() == before
        assert one.models.find("fast").model == "fake"
        assert (one.keys.find(b"first") is not None, one.keys.find(b"second")) == (True, None)


async def test_an_engine_that_cannot_be_opened_changes_nothing_but_who_is_let_in(
    caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    async with served(engine=("fake",), api_key=("first",)) as one:
        script = tmp_path / "none.toml"
        await one.says(Config(engine=("fake", "fake"), fake_script=script, alias=("x=fake",), api_key=("second",)))
        assert caplog.messages[-1].startswith("The keys of clients were read again; all else is left as it was: ")
        assert "none.toml" in caplog.messages[-1]
        assert (one.keys.find(b"first"), one.keys.find(b"second") is not None) == (None, True), "as it says"
        assert one.engines() == ["fake"]
        assert [model.id for model in one.models.models()] == ["fake"], "nor do names"
