"""`antiphon.testing.server`, the way to test clients and agents without a model.

Covers `testing/fixtures.py` and `testing/server.py`.
"""

import json
from pathlib import Path

import pytest

from antiphon.errors import StartupError
from antiphon.testing import server
from tests.support.paths import ROOT


@pytest.mark.shows("I4.3")
def test_a_server_answers_with_the_fake_engine_and_is_stopped_at_the_end(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Neither the variables nor the configuration file of the user have an effect."""
    monkeypatch.setenv("ANTIPHON_API_KEY", "secret")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    (tmp_path / "antiphon").mkdir()
    (tmp_path / "antiphon" / "config.toml").write_text("no_such_setting = 1")
    with server(fake_level="text", alias=["other=fake"], harmony=False) as antiphon:
        status, body = antiphon.post({"model": "other", "input": "Hello!"})
        assert (status, json.loads(body)["status"]) == (200, "completed")
        assert antiphon.v1 == f"{antiphon.url}/v1"
        assert str(antiphon.port) in antiphon.read_new_output()
    assert antiphon.process.returncode == 0
    assert antiphon.read_output() == b""


def test_a_setting_that_does_not_exist_is_an_error() -> None:
    with pytest.raises(StartupError, match="colour: not a setting"), server(colour="red"):
        pass


def test_a_server_that_cannot_start_is_an_error_with_its_output() -> None:
    with pytest.raises(StartupError, match=r"exit code 2:\n.*There is no engine 'no-such-engine'"):  # noqa: SIM117
        with server(engine="no-such-engine"):
            pass


@pytest.mark.shows("I4.3")
def test_the_fixture_is_one_server_for_all_tests(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "src"))
    pytester.makeconftest('pytest_plugins = ["antiphon.testing.fixtures"]')
    pytester.makepyfile("""
        seen = set()

        def test_one(antiphon_server):
            seen.add(antiphon_server.port)
            assert antiphon_server.get("/health")[0] == 200

        def test_other(antiphon_server):
            assert antiphon_server.port in seen
    """)
    pytester.runpytest_subprocess("-p", "no:cacheprovider").assert_outcomes(passed=2)
