"""The banner of a server with several engines."""

import pytest

from antiphon.cli.banner import Banner
from antiphon.config import Config
from antiphon.config.engines import EngineSpec


def test_the_banner_names_every_engine_and_marks_drained_ones(capsys: pytest.CaptureFixture[str]) -> None:
    engines = (EngineSpec(url="vllm://a:1", key="hush"), EngineSpec(url="vllm://b:1", drain=True))
    Banner(Config.from_settings(engines=engines, store="memory"))("http://127.0.0.1:8000", ["m", "n"])
    shown = capsys.readouterr().err
    assert "serves m, n with vllm://a:1, vllm://b:1 (drained)\n" in shown
    assert "hush" not in shown


def test_the_banner_line_is_shortened_with_many_engines_and_models(capsys: pytest.CaptureFixture[str]) -> None:
    urls = tuple(f"vllm://gpu-{number}:8000" for number in range(20))
    Banner(Config.from_settings(engine=urls, store="memory"))(
        "http://127.0.0.1:8000", [f"m{number}" for number in range(50)]
    )
    first = capsys.readouterr().err.splitlines()[0]
    assert first.endswith("gpu-5:8000 and 14 more")
    assert len(first) < 250
