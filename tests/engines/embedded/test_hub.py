"""Models of the Hugging Face Hub, from a server that speaks its API: which files are chosen, downloaded, continued,
verified and used again, and one message for every fault.

Covers `engines/embedded/hub_client.py` and `engines/embedded/known_models.py`, and the hub in `model_files.py`.
"""

import hashlib
import os
import shutil
import subprocess
import sys
from collections import namedtuple
from collections.abc import Iterator
from pathlib import Path

import pytest

from antiphon.engines.embedded.hub import MISSING, HubVariant, group_variants, select_variant
from antiphon.engines.embedded.known_models import KNOWN_MODELS, HubModel, ModelFile, find_model
from antiphon.engines.embedded.model_files import fetch_model, find_files, is_fetched, list_pulled, remove_files
from antiphon.errors import StartupError
from tests.engines.embedded.hub_server import COMMIT, HubServer, run_hub

REPO = "org/tiny-GGUF"
SMALL, LARGE = os.urandom(200_000), os.urandom(900_000)


def set_endpoint(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    """Set what huggingface_hub reads from HF_ENDPOINT when it is imported."""
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", url)
    template = url + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr("huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE", template)


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    """A hub with one repository of two quantisations."""
    with run_hub() as server:
        server.repos[REPO] = {
            "README.md": b"# Tiny",
            "tiny-Q4_K_M.gguf": SMALL,
            "tiny-q8_0.gguf": LARGE,
            "imatrix-tiny.gguf": b"statistics",
        }
        set_endpoint(monkeypatch, server.url)
        monkeypatch.setattr("huggingface_hub.constants.DOWNLOAD_CHUNK_SIZE", 100_000)
        monkeypatch.setenv("HF_TOKEN", server.token)
        yield server


def list_names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*") if path.is_file())


@pytest.mark.shows("I.60")
def test_a_model_of_the_hub_is_downloaded_with_progress_and_verified(hub: HubServer, tmp_path: Path) -> None:
    progress: list[tuple[str, int, int]] = []
    path = fetch_model(HubModel(repo=REPO), tmp_path, lambda *event: progress.append(event))
    assert path == tmp_path / "models" / "hub" / REPO / "tiny-Q4_K_M.gguf"
    assert path.read_bytes() == SMALL
    assert progress[0][0] == "Fetching tiny-Q4_K_M.gguf"
    assert ("Fetching tiny-Q4_K_M.gguf", len(SMALL), len(SMALL)) in progress
    assert progress[-1] == ("Checking tiny-Q4_K_M.gguf", len(SMALL), len(SMALL))
    assert list_names(path.parent) == [".lock", "tiny-Q4_K_M.checked", "tiny-Q4_K_M.gguf", "tiny-Q4_K_M.hub.json"]
    resolved = [request for request in hub.requests if "/resolve/" in request.path]
    assert [request.path for request in resolved] == [f"/{REPO}/resolve/{COMMIT}/tiny-Q4_K_M.gguf"]


@pytest.mark.shows("I.60")
def test_the_token_is_sent_to_the_hub_and_to_no_other_host(hub: HubServer, tmp_path: Path) -> None:
    hub.gated.add(REPO)
    fetch_model(HubModel(repo=REPO), tmp_path)
    sent = {request.path.startswith("/cdn/"): request.authorization for request in hub.requests}
    assert sent == {False: f"Bearer {hub.token}", True: None}


@pytest.mark.shows("I.60")
def test_a_pulled_model_needs_no_network(hub: HubServer, tmp_path: Path) -> None:
    model = HubModel(repo=REPO)
    path = fetch_model(model, tmp_path)
    count = len(hub.requests)
    assert fetch_model(model, tmp_path, lambda *_: pytest.fail("nothing to do")) == path
    path.touch()  # the stamp does not hold any more: the file is hashed again
    assert fetch_model(model, tmp_path) == path
    assert len(hub.requests) == count
    assert is_fetched(model, tmp_path)
    assert not is_fetched(HubModel(repo=REPO, variant="Q8_0"), tmp_path)


@pytest.mark.shows("I.61")
def test_an_interrupted_download_is_continued_by_a_later_one(hub: HubServer, tmp_path: Path) -> None:
    folder = tmp_path / "models" / "hub" / REPO
    folder.mkdir(parents=True)
    (folder / f"{hashlib.sha256(LARGE).hexdigest()}.part").write_bytes(LARGE[:123_456])
    path = fetch_model(HubModel(repo=REPO, variant="Q8_0"), tmp_path)
    assert path.read_bytes() == LARGE
    assert [request.range for request in hub.list_downloads()] == ["bytes=123456-"]
    assert not [*folder.glob("*.part")]


@pytest.mark.shows("I.61")
def test_a_stopped_download_leaves_what_it_has(hub: HubServer, tmp_path: Path) -> None:
    def stop(task: str, done: int, total: int) -> None:
        if done > 300_000:
            raise StartupError("The model download was stopped.")

    model = HubModel(repo=REPO, variant="q8_0")
    with pytest.raises(StartupError, match="was stopped"):
        fetch_model(model, tmp_path, stop)
    assert list_names(tmp_path) == [".lock", f"{hashlib.sha256(LARGE).hexdigest()}.part"]
    assert fetch_model(model, tmp_path).read_bytes() == LARGE
    assert [request.range for request in hub.list_downloads()] == [None, "bytes=300000-"]


@pytest.mark.shows("I.61")
def test_a_lost_connection_is_continued_at_once(hub: HubServer, tmp_path: Path) -> None:
    hub.cut_at = 500_000
    assert fetch_model(HubModel(repo=REPO, variant="Q8_0"), tmp_path).read_bytes() == LARGE
    assert len(hub.list_downloads()) == 2
    assert hub.list_downloads()[1].range == "bytes=500000-"


@pytest.mark.shows("I.62")
def test_a_wrong_hash_is_rejected_and_leaves_no_file(hub: HubServer, tmp_path: Path) -> None:
    hub.damaged = True
    with pytest.raises(StartupError, match=r"tiny-Q4_K_M\.gguf was fetched, but its hash is wrong"):
        fetch_model(HubModel(repo=REPO), tmp_path)
    assert list_names(tmp_path) == [".lock"]


@pytest.mark.shows("I.62")
def test_a_known_model_has_a_hash_of_its_own(hub: HubServer, tmp_path: Path) -> None:
    with pytest.raises(StartupError, match="is no longer the file that is known here"):
        fetch_model(HubModel(repo=REPO, variant="Q4_K_M", sha256="0" * 64), tmp_path)
    known = HubModel(repo=REPO, variant="Q4_K_M", sha256=hashlib.sha256(SMALL).hexdigest())
    assert fetch_model(known, tmp_path).read_bytes() == SMALL


@pytest.mark.shows("I.62")
def test_a_file_without_a_hash_is_not_downloaded(hub: HubServer, tmp_path: Path) -> None:
    hub.hashless = True
    with pytest.raises(StartupError, match=r"no hash of tiny-Q4_K_M\.gguf"):
        fetch_model(HubModel(repo=REPO), tmp_path)
    assert hub.list_downloads() == []


@pytest.mark.shows("I.60")
def test_a_new_version_replaces_the_pulled_one(hub: HubServer, tmp_path: Path) -> None:
    path = fetch_model(HubModel(repo=REPO), tmp_path)
    hub.repos[REPO]["tiny-Q4_K_M.gguf"] = LARGE
    assert fetch_model(HubModel(repo=REPO), tmp_path).read_bytes() == SMALL  # a start does not ask
    assert fetch_model(HubModel(repo=REPO), tmp_path, verify=True) == path
    assert path.read_bytes() == LARGE
    assert [pulled.bytes for pulled in list_pulled(tmp_path)] == [len(LARGE)]


@pytest.mark.shows("I.60")
def test_all_parts_of_a_split_model_are_downloaded(hub: HubServer, tmp_path: Path) -> None:
    parts = {f"Q6_K/tiny-Q6_K-0000{number}-of-00003.gguf": os.urandom(1000) for number in (1, 2, 3)}
    hub.repos[REPO].update(parts)
    path = fetch_model(HubModel(repo=REPO, variant="Q6_K"), tmp_path)
    assert path.name == "tiny-Q6_K-00001-of-00003.gguf"
    assert [(path.parent / Path(name).name).read_bytes() for name in parts] == [*parts.values()]
    del hub.repos[REPO]["Q6_K/tiny-Q6_K-00002-of-00003.gguf"]
    with pytest.raises(StartupError, match="tiny-Q6_K in org/tiny-GGUF is incomplete: 2 of 3 files"):
        fetch_model(HubModel(repo=REPO, variant="Q6_K"), tmp_path, verify=True)


@pytest.mark.shows("I.63")
def test_an_unknown_repository_is_reported(hub: HubServer, tmp_path: Path) -> None:
    with pytest.raises(StartupError, match=rf"There is no model org/nobody at {hub.url}, or it is private"):
        fetch_model(HubModel(repo="org/nobody"), tmp_path)


@pytest.mark.shows("I.63")
@pytest.mark.parametrize("token", ["", "hf_of_another"])
def test_a_gated_repository_is_reported(
    hub: HubServer, tmp_path: Path, token: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.gated.add(REPO)
    monkeypatch.setenv("HF_TOKEN", token)
    monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", str(tmp_path / "none"))
    with pytest.raises(StartupError, match=rf"{REPO} is gated: accept its terms at {hub.url}/{REPO}, and set HF_TOKEN"):
        fetch_model(HubModel(repo=REPO), tmp_path)


@pytest.mark.shows("I.63")
def test_a_refused_token_is_reported(hub: HubServer, tmp_path: Path) -> None:
    hub.failing = 403
    with pytest.raises(StartupError, match=r"refuses access to org/tiny-GGUF \(HTTP 403\): set HF_TOKEN"):
        fetch_model(HubModel(repo=REPO), tmp_path)
    hub.failing = 500
    with pytest.raises(StartupError, match="returned HTTP 500 for org/tiny-GGUF; try again later"):
        fetch_model(HubModel(repo=REPO), tmp_path)


@pytest.mark.shows("I.63")
def test_an_unreachable_hub_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    set_endpoint(monkeypatch, "http://127.0.0.1:9")
    with pytest.raises(StartupError, match=r"The hub at http://127.0.0.1:9 cannot be reached: .*HF_ENDPOINT"):
        fetch_model(HubModel(repo=REPO), tmp_path)


@pytest.mark.shows("I.63")
def test_an_unknown_quantisation_lists_those_that_exist(hub: HubServer, tmp_path: Path) -> None:
    with pytest.raises(
        StartupError, match=r"org/tiny-GGUF has no Q2_K; write hf:org/tiny-GGUF:NAME with one of Q4_K_M, Q8_0\."
    ):
        fetch_model(HubModel(repo=REPO, variant="Q2_K"), tmp_path)


@pytest.mark.shows("I.63")
def test_a_repository_without_gguf_files_is_reported(hub: HubServer, tmp_path: Path) -> None:
    hub.repos["org/tiny"] = {"model.safetensors": SMALL}
    with pytest.raises(StartupError, match="org/tiny has no GGUF file"):
        fetch_model(HubModel(repo="org/tiny"), tmp_path)


@pytest.mark.shows("I.63")
def test_a_full_disk_is_noticed_before_the_download(
    hub: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(10**9, 10**9, 100_000))
    with pytest.raises(StartupError, match=r"tiny-Q4_K_M needs 200.0 kB more on the disk of .*, but 100.0 kB are free"):
        fetch_model(HubModel(repo=REPO), tmp_path)
    assert hub.list_downloads() == []


@pytest.mark.shows("I.66")
def test_one_of_two_quantisations_is_deleted(hub: HubServer, tmp_path: Path) -> None:
    small, large = HubModel(repo=REPO, variant="Q4_K_M"), HubModel(repo=REPO, variant="Q8_0")
    for model in (small, large):
        fetch_model(model, tmp_path)
    remove_files(find_files(small, tmp_path))
    assert (is_fetched(small, tmp_path), is_fetched(large, tmp_path)) == (False, True)
    remove_files(find_files(large, tmp_path))
    assert list_names(tmp_path) == []
    assert [*(tmp_path / "models" / "hub").iterdir()] == []


@pytest.mark.shows("I.66")
def test_all_of_a_repository_is_deleted_also_what_is_incomplete(hub: HubServer, tmp_path: Path) -> None:
    folder = fetch_model(HubModel(repo=REPO), tmp_path).parent
    (folder / f"{'0' * 64}.part").write_bytes(b"begin")
    with pytest.raises(StartupError, match=r"org/tiny-GGUF has no Q2_K; .* one of Q4_K_M"):
        find_files(HubModel(repo=REPO, variant="Q2_K"), tmp_path)
    remove_files(find_files(HubModel(repo=REPO), tmp_path))
    assert list_names(tmp_path) == []
    with pytest.raises(StartupError, match="hf:org/tiny-GGUF is not on this machine"):
        find_files(HubModel(repo=REPO), tmp_path)


@pytest.mark.shows("I.66")
def test_a_model_is_not_deleted_while_it_is_downloaded(hub: HubServer, tmp_path: Path) -> None:
    def remove(task: str, done: int, total: int) -> None:
        remove_files(find_files(HubModel(repo=REPO), tmp_path))

    with pytest.raises(StartupError, match="A model is being downloaded to"):
        fetch_model(HubModel(repo=REPO), tmp_path, remove)


def make_variants(*names: str) -> list[HubVariant]:
    return group_variants(REPO, COMMIT, [ModelFile(file=name, bytes=1, sha256="") for name in names])


@pytest.mark.parametrize(
    ("name", "quant"),
    [
        ("qwen2.5-coder-1.5b-instruct-q4_k_m.gguf", "Q4_K_M"),
        ("SmolLM2-135M-Instruct.Q4_1.gguf", "Q4_1"),
        ("gpt-oss-20b-mxfp4.gguf", "MXFP4"),
        ("Qwen3-8B-UD-IQ2_XXS.gguf", "UD-IQ2_XXS"),
        ("gemma-3-4b-it-BF16.gguf", "BF16"),
        ("Llama-3.2-1B-Q4_K_M-imat.gguf", "Q4_K_M"),
        ("Q8_0/big-Q8_0-00001-of-00002.gguf", "Q8_0"),
        ("qwen3.gguf", "qwen3"),
    ],
)
def test_the_quantisation_is_found_in_the_name_of_a_file(name: str, quant: str) -> None:
    assert [variant.quant for variant in make_variants(name)] == [quant]


@pytest.mark.shows("I.60")
@pytest.mark.parametrize(
    ("names", "wanted", "chosen"),
    [
        (["a-Q4_K_M.gguf", "a-Q8_0.gguf"], "", "a-Q4_K_M"),
        (["a-Q2_K.gguf", "a-Q8_0.gguf"], "", "a-Q8_0"),
        (["a-Q2_K.gguf"], "", "a-Q2_K"),
        (["a-Q4_K_M.gguf", "b-Q4_K_M.gguf"], "b-Q4_K_M.gguf", "b-Q4_K_M"),
        (["a-Q2_K.gguf", "a-F16.gguf"], "f16", "a-F16"),
        (["a-Q2_K.gguf", "a-F16.gguf"], "", r"has several models; write hf:org/tiny-GGUF:NAME with one of F16, Q2_K\."),
        (["a-Q4_K_M.gguf", "b-Q4_K_M.gguf"], "", r"with one of a-Q4_K_M, b-Q4_K_M\."),
    ],
)
def test_the_default_is_q4_k_m_then_q8_0_then_the_only_one(names: list[str], wanted: str, chosen: str) -> None:
    model = HubModel(repo=REPO, variant=wanted)
    if " " in chosen:
        with pytest.raises(StartupError, match=chosen):
            select_variant(model, make_variants(*names))
    else:
        assert select_variant(model, make_variants(*names)).name == chosen


def test_references_are_parsed() -> None:
    assert find_model("hf:Org/Some.Model-GGUF:Q4_K_M") == HubModel(repo="Org/Some.Model-GGUF", variant="Q4_K_M")
    assert find_model("hf:Org/Some.Model-GGUF").id == "Some.Model"
    assert find_model("gpt-oss-20b") is KNOWN_MODELS["gpt-oss-20b"]
    for wrong in ("hf:", "hf:repo", "hf:../x", "hf:a/b/c", "hf:a/b:", "hf:a/..", "hf:a b/c"):
        with pytest.raises(StartupError, match="is not a model on the hub; expected hf:ORG/REPO"):
            find_model(wrong)


@pytest.mark.shows("I.63")
def test_a_missing_package_is_named(tmp_path: Path) -> None:
    program = (
        "import sys, pathlib\n"
        "sys.modules['huggingface_hub'] = None\n"
        "from antiphon.engines.embedded.known_models import HubModel\n"
        "from antiphon.engines.embedded.model_files import fetch_model\n"
        "fetch_model(HubModel(repo='org/tiny'), pathlib.Path(sys.argv[1]))\n"
    )
    ran = subprocess.run([sys.executable, "-c", program, str(tmp_path)], capture_output=True, check=False, text=True)
    assert ran.stderr.splitlines()[-1].endswith(MISSING)
    assert "pip install 'antiphon[hub]'" in MISSING
