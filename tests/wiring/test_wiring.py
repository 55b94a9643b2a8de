"""Tests that settings reach the components they configure, by name, and that no setting is unused.

Covers `wiring/app.py`, `wiring/components.py` and `wiring/serving.py`.
"""

import ast
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest

from antiphon import config as settings_package
from antiphon.config import Config
from antiphon.config.engines import EngineSpec
from antiphon.config.settings import fields_by_name
from antiphon.core.prompt import ParserChoice
from antiphon.engines.factory import build_engine, build_pool
from antiphon.engines.fake.engine import FakeEngine, FakeSettings
from antiphon.engines.http.adapters.vllm import Vllm
from antiphon.engines.http.base import HttpSettings
from antiphon.engines.llamacpp.engine import LlamaCpp, LlamaCppSettings
from antiphon.engines.pool import EnginePool
from antiphon.engines.registry import ENGINES
from antiphon.errors import StartupError, Unavailable
from antiphon.stores.registry import make_store
from antiphon.wiring import build_app

SRC = Path(settings_package.__file__).parents[1]


def test_an_engines_settings_are_filled_by_name_with_or_without_its_prefix() -> None:
    engine = build_engine(Config.from_settings(engine="fake", fake_rate=5.0, fake_level="text", context=100))
    assert isinstance(engine, FakeEngine)
    assert engine.settings == FakeSettings(rate=5.0, level="text", context=100)


def test_unset_settings_keep_the_engine_defaults(tmp_path: Path) -> None:
    engine = build_engine(Config.from_settings(cache_dir=tmp_path, threads=3))
    assert isinstance(engine, LlamaCpp)
    assert engine.settings == LlamaCppSettings(cache_dir=tmp_path, threads=3)


def test_engine_progress_is_reported_to_the_callback() -> None:
    reports: list[tuple[str, int, int]] = []
    engine = build_engine(Config(), lambda *report: reports.append(report))
    assert isinstance(engine, LlamaCpp)
    assert engine.on_progress is not None
    engine.on_progress("Loading", 0, 1)
    assert reports == [("Loading", 0, 1)]


def test_a_remote_engine_receives_its_url_and_key() -> None:
    engine = build_engine(
        Config.from_settings(engine="vllm+https://gpu", engine_key="k", model=("m",), idle_timeout=7.0)
    )
    assert isinstance(engine, Vllm)
    expected = HttpSettings(engine="vllm+https://gpu", engine_key="k", model=("m",), idle_timeout=7.0)
    assert engine.settings == expected


@pytest.mark.shows("C.23")
def test_several_engines_form_a_pool_with_their_own_settings() -> None:
    config = Config.from_settings(
        engine=("vllm://a:8000", "vllm+https://b", "llamacpp"),
        engine_key=("a:8000=for-a", "b=for-b"),
        model=("x.gguf",),
        engine_slots=7,
    )
    pool = build_engine(config)
    assert isinstance(pool, EnginePool)
    first, second, third = [member.engine for member in pool.members()]
    assert isinstance(first, Vllm)
    assert isinstance(second, Vllm)
    assert isinstance(third, LlamaCpp)
    assert (first.settings.engine, first.settings.engine_key) == ("vllm://a:8000", "for-a")
    assert (second.settings.engine, second.settings.engine_key) == ("vllm+https://b", "for-b")
    assert (first.settings.model, third.settings.model) == ((), ("x.gguf",))
    assert [member.spec.max_running for member in pool.members()] == [7, 7, None]
    assert [member.name for member in pool.members()] == ["vllm", "vllm-2", "llamacpp"]


def test_an_engine_table_overrides_the_global_settings() -> None:
    tables = (
        EngineSpec(url="vllm://a", level="tokens", models=("m",), slots=3),
        EngineSpec(url="vllm://b", name="vllm"),
        EngineSpec(url="llamacpp", models=("y.gguf",), slots=2),
    )
    pool = build_engine(Config.from_settings(engines=tables, slots=9, idle_timeout=5.0))
    assert isinstance(pool, EnginePool)
    first, second, third = [member.engine for member in pool.members()]
    assert isinstance(first, Vllm)
    assert isinstance(second, Vllm)
    assert isinstance(third, LlamaCpp)
    assert (first.settings.engine_level, first.settings.model, first.settings.idle_timeout) == ("tokens", ("m",), 5.0)
    assert second.settings.engine_level == "chat"
    assert (third.settings.model, third.settings.slots) == (("y.gguf",), 2)
    assert [member.spec.max_running for member in pool.members()] == [3, 1024, 2]
    assert [member.name for member in pool.members()] == ["vllm-2", "vllm", "llamacpp"]


def test_output_parsers_are_set_globally_and_per_engine() -> None:
    tables = (
        EngineSpec(url="vllm://a", level="tokens", tool_call_parser="mistral", harmony=True),
        EngineSpec(url="fake"),
    )
    pool = build_engine(Config.from_settings(engines=tables, reasoning_parser="qwen3", tool_call_parser="hermes"))
    assert isinstance(pool, EnginePool)
    first, second = [member.engine for member in pool.members()]
    assert isinstance(first, Vllm)
    assert isinstance(second, FakeEngine)
    assert first.settings.reads == ParserChoice(reasoning="qwen3", calls="mistral", harmony=True)
    assert second.settings.reads == ParserChoice(reasoning="qwen3", calls="hermes")


@pytest.mark.parametrize("flag", ["tool_call_parser", "reasoning_parser"])
def test_an_unknown_parser_raises_an_error_that_lists_the_known_ones(flag: str) -> None:
    settings: dict[str, Any] = {flag: "steam"}
    with pytest.raises(StartupError, match=rf"--{flag.replace('_', '-')} 'steam' is not known; there are auto, none, "):
        build_app(Config.from_settings(engine="fake", store="memory", **settings), FakeEngine())


def test_a_pool_can_be_built_for_a_single_engine() -> None:
    pool = build_pool(Config.from_settings(engine="fake"))
    assert [type(member.engine) for member in pool.members()] == [FakeEngine]
    assert pool.name == "fake"


def test_an_unknown_engine_raises_an_error_that_lists_the_known_ones() -> None:
    with pytest.raises(StartupError, match=r"There is no engine 'steam'; expected fake, llamacpp, .* or vllm\."):
        build_engine(Config.from_settings(engine="steam"))


def test_the_store_defaults_to_the_data_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", "/somewhere")
    assert Config().storage.store_location == "/somewhere/antiphon/antiphon.db"
    assert Config.from_settings(store="./mine.db").storage.store_location == "./mine.db"
    assert Config.from_settings(store="./mine.db", disable_store=True).storage.store_location == "memory"


@pytest.mark.parametrize(
    ("settings", "message"),
    [({"store": "mysql://x"}, "--store takes a file"), ({"live": "amqp://x"}, "--live takes a URL")],
)
def test_an_unknown_store_or_live_address_is_rejected(settings: dict[str, Any], message: str) -> None:
    config = Config.from_settings(engine="fake", **{"store": "memory", **settings})
    with pytest.raises(StartupError, match=message):
        build_app(config, FakeEngine())


class BrokenEngine(FakeEngine):
    async def open(self) -> None:
        raise StartupError("The engine is broken.")


@pytest.mark.anyio
async def test_opened_components_are_closed_after_a_failed_startup() -> None:
    store = make_store("memory", 1000.0)
    app = build_app(Config.from_settings(engine="fake"), BrokenEngine(), store)
    with pytest.raises(StartupError, match="broken"):
        await app.lifecycle.open()
    assert await store.get("default", "resp_1") is None
    await app.lifecycle.close()
    with pytest.raises(Unavailable, match="closed"):
        await store.get("default", "resp_1")


@pytest.mark.anyio
async def test_closing_an_app_that_was_never_opened_is_harmless() -> None:
    await build_app(Config.from_settings(engine="fake", store="memory"), FakeEngine()).lifecycle.close()


def test_every_setting_is_read_by_the_source() -> None:
    read = {
        node.attr
        for path in SRC.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load) and _is_config(node.value)
    }
    for name, location in ENGINES.items():
        module, _, kind = location.partition(":")
        hint = get_type_hints(getattr(import_module(module), kind).__init__)["settings"]
        fields = next(iter(get_args(hint)), hint).__struct_fields__
        read |= {*fields, *(f"{name}_{field}" for field in fields)}
    read |= {"url", "host", "port"} if "server_url" in read else set()
    read |= {"store"} if "store_location" in read else set()
    read |= {"ui"} if "serves_page" in read else set()
    read |= {"engines", "engine_slots"} if "specs" in read else set()
    read |= {"alias", "aliases"} if "names" in read else set()
    read |= {"mcp", "mcp_server"} if "mcp_servers" in read else set()
    read |= {"tool_servers", "tool_server"} if "tool_server_specs" in read else set()
    read |= {"image_service", "image_service_config"} if "load_specs" in read else set()
    read |= {"otlp_endpoint", "otlp_traces_endpoint"} if "traces_url" in read else set()
    prefixed = {name for name, (area, row) in fields_by_name().items() if name != row.name}
    assert fields_by_name().keys() - prefixed - read == set()
    assert set(Config.__struct_fields__) - read == set()


def _is_config(node: ast.expr) -> bool:
    """Whether the expression is a Config or one of its areas, by its name."""
    names = {"config", "_config", "settings", "_settings", *Config.__struct_fields__}
    return (getattr(node, "id", "") or getattr(node, "attr", "")) in names


def test_packages_that_an_idle_server_does_not_use_are_not_loaded() -> None:
    code = (
        "import sys, antiphon.wiring as w; from antiphon.config import Config;"
        "from antiphon.engines.fake import FakeEngine;"
        "w.build_app(Config.from_settings(engine='fake', store='memory', keep_traces=3), FakeEngine());"
        "print([name for name in sys.modules if 'opentelemetry' in name or name in ('requests', 'numpy')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=150, check=True)
    assert done.stdout.strip() == "[]"
