"""Which models there are, and how one is fetched."""

from pathlib import Path

import pytest

from antiphon.config import Config
from antiphon.engines.llamacpp.model_files import DEFAULT, EMBEDDING
from tests.cli.process import run
from tests.support.server_process import serving

pytestmark = pytest.mark.shows("I.3")
NOBODY = ("--config", "nobody.toml")  # a server that is not there


@pytest.fixture(autouse=True)
def nobody(tmp_path: Path) -> None:
    (tmp_path / "nobody.toml").write_text("port = 9\n")


def test_a_running_server_says_what_it_serves(tmp_path: Path) -> None:
    with serving("--engine", "fake", "--served-model-name", "parrot", "--served-model-name", "polly") as live:
        ran = run(tmp_path, "models", "--url", live.url)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "parrot\npolly\n", "")


def test_without_a_server_the_models_to_be_had_are_listed(tmp_path: Path) -> None:
    ran = run(tmp_path, "models", *NOBODY)
    to_be_had = "".join(f"{known.id}  (antiphon pull {known.id})\n" for known in (DEFAULT, EMBEDDING))
    assert (ran.returncode, ran.stdout) == (0, to_be_had)
    assert "No server answers at http://127.0.0.1:9" in ran.stderr


def test_a_server_that_was_named_and_does_not_answer_is_an_error(tmp_path: Path) -> None:
    ran = run(tmp_path, "models", "--url", "http://127.0.0.1:9")
    assert (ran.returncode, ran.stdout) == (1, "")


@pytest.mark.real_model
@pytest.mark.timeout(400)
def test_the_built_in_model_is_fetched_once_and_checked_each_time(tmp_path: Path) -> None:
    """Into the cache that the other tests use too, so that only the first run needs the network."""
    cache = Config().cache_dir
    for _ in range(2):
        ran = run(tmp_path, "pull", "--cache-dir", str(cache), seconds=300)
        assert (ran.returncode, ran.stdout) == (0, f"{cache / 'models' / DEFAULT.file}\n"), ran.stderr
        assert f"Checking {DEFAULT.id}: 100 %\n" in ran.stderr
    assert f"{DEFAULT.id}  (fetched)\n" in run(tmp_path, "models", *NOBODY, "--cache-dir", str(cache)).stdout


def test_a_name_that_is_not_known_is_one_sentence(tmp_path: Path) -> None:
    ran = run(tmp_path, "pull", "nobody")
    assert (ran.returncode, ran.stdout) == (2, "")
    assert ran.stderr == f"antiphon: There is no known model 'nobody'; expected {DEFAULT.id} or {EMBEDDING.id}.\n"
