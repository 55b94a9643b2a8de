"""`antiphon models` and `antiphon pull`, with and without a running server."""

from pathlib import Path

import pytest

from antiphon.config import Config
from antiphon.engines.embedded.model_files import DEFAULT_MODEL, EMBEDDING_MODEL
from tests.cli.process import run_antiphon
from tests.support.server_process import run_server

pytestmark = pytest.mark.shows("I.3")
NO_SERVER = ("--config", "nobody.toml")  # settings with a port on which no server listens


@pytest.fixture(autouse=True)
def unused_port_config(tmp_path: Path) -> None:
    (tmp_path / "nobody.toml").write_text("port = 9\n")


def test_the_models_of_a_running_server_are_listed(tmp_path: Path) -> None:
    with run_server("--engine", "fake", "--served-model-name", "parrot", "--served-model-name", "polly") as server:
        ran = run_antiphon(tmp_path, "models", "--url", server.url)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "parrot\npolly\n", "")


def test_the_available_models_are_listed_without_a_server(tmp_path: Path) -> None:
    ran = run_antiphon(tmp_path, "models", *NO_SERVER)
    expected = "".join(f"{model.id}  (antiphon pull {model.id})\n" for model in (DEFAULT_MODEL, EMBEDDING_MODEL))
    assert (ran.returncode, ran.stdout) == (0, expected)
    assert "No server answers at http://127.0.0.1:9" in ran.stderr


def test_an_explicit_server_that_does_not_answer_is_an_error(tmp_path: Path) -> None:
    ran = run_antiphon(tmp_path, "models", "--url", "http://127.0.0.1:9")
    assert (ran.returncode, ran.stdout) == (1, "")


@pytest.mark.real_model
@pytest.mark.timeout(400)
def test_the_built_in_model_is_downloaded_once_and_verified_each_time(tmp_path: Path) -> None:
    """Uses the cache of the other tests, so that only the first run needs the network."""
    cache = Config().inference.cache_dir
    for _ in range(2):
        ran = run_antiphon(tmp_path, "pull", "--cache-dir", str(cache), seconds=300)
        assert (ran.returncode, ran.stdout) == (0, f"{cache / 'models' / DEFAULT_MODEL.file}\n"), ran.stderr
        assert f"Checking {DEFAULT_MODEL.id}: 100 %\n" in ran.stderr
    assert (
        f"{DEFAULT_MODEL.id}  (fetched)\n"
        in run_antiphon(tmp_path, "models", *NO_SERVER, "--cache-dir", str(cache)).stdout
    )


def test_an_unknown_model_name_prints_one_message(tmp_path: Path) -> None:
    ran = run_antiphon(tmp_path, "pull", "nobody")
    assert (ran.returncode, ran.stdout) == (2, "")
    assert ran.stderr == f"antiphon: Unknown model 'nobody'; expected {DEFAULT_MODEL.id} or {EMBEDDING_MODEL.id}.\n"
