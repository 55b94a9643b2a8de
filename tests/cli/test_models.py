"""`antiphon models` and `antiphon pull`, with and without a running server."""

import json
from pathlib import Path

import pytest

from antiphon.config import Config
from antiphon.engines.embedded.known_models import DEFAULT_MODEL, KNOWN_MODELS, HubModel
from antiphon.engines.embedded.model_files import format_size
from tests.cli.process import run_antiphon
from tests.engines.embedded.hub_server import run_hub
from tests.support.paths import ROOT
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
    expected = "".join(f"{name}  (antiphon pull {name})\n" for name in KNOWN_MODELS)
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
    assert ran.stderr.startswith("antiphon: Unknown model 'nobody'; expected hf:ORG/REPO, or one of the known models: ")


@pytest.mark.shows("I.64")
def test_the_known_models_are_listed_with_sizes(tmp_path: Path) -> None:
    ran = run_antiphon(tmp_path, "models", "--known")
    lines = [line.split() for line in ran.stdout.splitlines()]
    assert (ran.returncode, lines[0], ran.stderr) == (0, ["NAME", "SIZE", "HERE", "SOURCE", "FOR"], "")
    assert [line[0] for line in lines[1:]] == [*KNOWN_MODELS]
    expected = ["1.1", "GB", "no", "hf:Qwen/Qwen2.5-Coder-1.5B-Instruct-GGUF:Q4_K_M", "calls", "tools"]
    assert lines[3][1 : 1 + len(expected)] == [*expected[:-1], "tools;"]


def test_the_page_has_every_known_model() -> None:
    page = (ROOT / "docs" / "models.md").read_text("utf-8")
    for name, model in KNOWN_MODELS.items():
        source = f"`{model.reference}`" if isinstance(model, HubModel) else "a package on PyPI"
        assert f"| `{name}` | {format_size(model.bytes)} | {source} | {model.purpose} |" in page


@pytest.mark.shows("I.60", "I.66")
def test_a_model_of_the_hub_is_pulled_listed_and_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with run_hub() as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        hub.repos["org/tiny-GGUF"] = {"tiny-Q8_0.gguf": b"weights"}
        ran = run_antiphon(tmp_path, "pull", "hf:org/tiny-GGUF")
        assert (ran.returncode, Path(ran.stdout.strip()).read_bytes()) == (0, b"weights"), ran.stderr
        assert "Fetching tiny-Q8_0.gguf: 100 %\n" in ran.stderr
        ran = run_antiphon(tmp_path, "pull", "hf:org/nobody")
        assert (ran.returncode, ran.stdout) == (2, "")
        assert ran.stderr.startswith("antiphon: There is no model org/nobody")
    assert "hf:org/tiny-GGUF:Q8_0  (fetched)\n" in run_antiphon(tmp_path, "models", *NO_SERVER).stdout
    refused = run_antiphon(tmp_path, "rm", "hf:org/tiny-GGUF", stdin="n\n")
    assert (refused.returncode, refused.stderr) == (1, "Delete this? [y/N]: Aborted!\n")
    assert f"{tmp_path}/antiphon/models/hub/org/tiny-GGUF/tiny-Q8_0.gguf  7 bytes\n" in refused.stdout
    deleted = run_antiphon(tmp_path, "rm", "hf:org/tiny-GGUF", "--yes")
    assert (deleted.returncode, deleted.stdout) == (0, refused.stdout), deleted.stderr
    assert not (tmp_path / "antiphon" / "models" / "hub" / "org").exists()
    again = run_antiphon(tmp_path, "rm", "hf:org/tiny-GGUF", "--yes")
    assert (again.returncode, again.stderr) == (
        2, "antiphon: hf:org/tiny-GGUF is not on this machine; `antiphon models` lists what is.\n"
    )  # fmt: skip


@pytest.mark.needs("llamacpp")
@pytest.mark.real_model
@pytest.mark.shows("I.60", "I.65")
def test_a_model_of_the_hub_is_served(shallow_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with run_hub() as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        hub.repos["org/small-GGUF"] = {"small.Q4_1.gguf": shallow_model.read_bytes()}
        with run_server("hf:org/small-GGUF", "--cache-dir", str(tmp_path), "--context", "512") as server:
            status, body = server.post({"model": "small", "input": "hi", "max_output_tokens": 16})
            listed = run_antiphon(tmp_path, "ps", "--url", server.url).stdout.splitlines()
    assert (status, json.loads(body)["model"]) == (200, "small")
    assert [line.split() for line in listed] == [
        ["NAME", "ENGINE", "STATE", "CONTEXT", "RUNNING"],
        ["small", "llamacpp", "loaded", "512", "0"],
    ]


@pytest.mark.shows("I.65")
def test_models_of_engines_that_report_nothing_are_ready(tmp_path: Path) -> None:
    with run_server("--engine", "fake", "--served-model-name", "parrot") as server:
        ran = run_antiphon(tmp_path, "ps", "--url", server.url)
    assert [line.split() for line in ran.stdout.splitlines()[1:]] == [["parrot", "fake", "ready", "32768", "0"]]
