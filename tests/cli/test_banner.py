"""What a person sees when a server with several engines is up."""

import pytest

from antiphon.cli.banner import Banner
from antiphon.config import Config
from antiphon.config.engines import EngineSpec


def test_every_engine_is_named_and_who_gets_no_work_is_marked(capsys: pytest.CaptureFixture[str]) -> None:
    engines = (EngineSpec(url="vllm://a:1", key="hush"), EngineSpec(url="vllm://b:1", drain=True))
    Banner(Config(engines=engines, store="memory"))("http://127.0.0.1:8000", ["m", "n"])
    shown = capsys.readouterr().err
    assert "serves m, n with vllm://a:1, vllm://b:1 (drained)\n" in shown
    assert "hush" not in shown


def test_a_line_stays_readable_with_many(capsys: pytest.CaptureFixture[str]) -> None:
    urls = tuple(f"vllm://gpu-{number}:8000" for number in range(20))
    Banner(Config(engine=urls, store="memory"))("http://127.0.0.1:8000", [f"m{number}" for number in range(50)])
    first = capsys.readouterr().err.splitlines()[0]
    assert first.endswith("gpu-5:8000 and 14 more")
    assert len(first) < 250
