"""Settings reach whom they are for: by name, and none is left over."""

import ast
from importlib import import_module
from pathlib import Path

import pytest

from antiphon import config as settings_package
from antiphon.config import Config
from antiphon.engines.fake.engine import FakeEngine, FakeSettings
from antiphon.engines.llamacpp.engine import LlamaCpp, LlamaCppSettings
from antiphon.engines.registry import ENGINES
from antiphon.errors import StartupError
from antiphon.wiring import build_engine

SRC = Path(settings_package.__file__).parents[1]


def test_an_engines_settings_are_filled_by_name_with_or_without_its_prefix() -> None:
    engine = build_engine(Config(engine="fake", fake_rate=5.0, fake_level="text", context=100))
    assert isinstance(engine, FakeEngine)
    assert engine.settings == FakeSettings(rate=5.0, level="text", context=100)


def test_what_is_not_set_is_the_engines_to_decide(tmp_path: Path) -> None:
    engine = build_engine(Config(cache_dir=tmp_path, threads=3))
    assert isinstance(engine, LlamaCpp)
    assert engine.settings == LlamaCppSettings(cache_dir=tmp_path, threads=3)


def test_an_engine_that_tells_of_its_progress_is_heard() -> None:
    heard: list[tuple[str, int, int]] = []
    engine = build_engine(Config(), lambda *told: heard.append(told))
    assert isinstance(engine, LlamaCpp)
    assert engine.on_progress is not None
    engine.on_progress("Loading", 0, 1)
    assert heard == [("Loading", 0, 1)]


def test_an_engine_that_nobody_knows_is_a_sentence_with_those_that_are_known() -> None:
    with pytest.raises(StartupError, match="There is no engine 'steam'; expected fake or llamacpp"):
        build_engine(Config(engine="steam"))


def test_there_is_no_setting_that_nothing_reads() -> None:
    read = {
        node.attr
        for path in SRC.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load) and _is_config(node.value)
    }
    for name, place in ENGINES.items():
        module, _, kind = place.partition(":")
        fields = getattr(import_module(module), f"{kind.removesuffix('Engine')}Settings").__struct_fields__
        read |= {*fields, *(f"{name}_{field}" for field in fields)}
    read |= {"url", "host", "port"} if "server_url" in read else set()
    assert set(Config.__struct_fields__) - read == set()


def _is_config(node: ast.expr) -> bool:
    return getattr(node, "id", "") == "config" or getattr(node, "attr", "") in ("config", "_config")
