"""The files of a skill as a zip file, which comes from a client and may be hostile.

Everything is checked before it is stored or unpacked: the number of entries, their names and kinds, the sizes that they
claim, which bound what is unpacked, and their checksums. Nothing is ever unpacked to a path of the server.
"""

import base64
import binascii
import re
import stat
import struct
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from io import BytesIO
from typing import Final
from zipfile import ZIP_DEFLATED, ZIP_STORED, BadZipFile, ZipFile, ZipInfo

from msgspec import Struct

from antiphon.errors import InvalidValue
from antiphon.sandbox.worker.paths import FileRefused, check_path

MAX_ZIP_BYTES: Final = 50 * 1024 * 1024
MAX_FILES: Final = 500
MAX_FILE_BYTES: Final = 25 * 1024 * 1024
MAX_UNPACKED_BYTES: Final = 200 * 1024 * 1024
MANIFEST: Final = "SKILL.md"
_MAX_PATH_BYTES = 512
_MAX_MANIFEST_BYTES = 1024 * 1024
MAX_NAME_LENGTH, MAX_DESCRIPTION_LENGTH = 64, 1024
_HEADER, _MAX_HEADERS = b"PK\x01\x02", 5000  # of an entry; a directory of a million of them is not even read
_ENCRYPTED = 0x1
_DATE = (1980, 1, 1, 0, 0, 0)  # of files in a zip file that is made here: equal files have equal ones
_FIELD = re.compile(r"([A-Za-z][\w-]*):(?:[ \t]+(.*))?")
_BLOCK = re.compile(r"[>|][+-]?\d?[+-]?")
_ZIP_ERRORS = (BadZipFile, zlib.error, struct.error, EOFError, RuntimeError, ValueError, OverflowError)


class _BundleRefused(Exception):
    """The bundle is not accepted; the message says why."""


class SkillBundle(Struct, frozen=True):
    """A checked zip file. Paths are relative to the folder of the skill, and the manifest is the last one."""

    name: str
    description: str
    archive: ZipFile
    entries: dict[str, ZipInfo]

    def read(self, path: str) -> bytes:
        return self.archive.read(self.entries[path])


def open_bundle(data: bytes, param: str) -> SkillBundle:
    """Check a zip file and read its manifest. Raises InvalidValue that names `param`. Call it in a thread."""
    with _explain(param):
        if len(data) > MAX_ZIP_BYTES or data.count(_HEADER) > _MAX_HEADERS:
            raise _BundleRefused(f"a zip file has at most {MAX_ZIP_BYTES:,} bytes and {MAX_FILES} files")
        archive = ZipFile(BytesIO(data))
        entries = _find_folder(_list_files(archive.infolist()))
        name, description = _read_manifest(archive, entries[MANIFEST])
        if archive.testzip() is not None:
            raise _BundleRefused("the checksum of a file is wrong")
        return SkillBundle(name, description, archive, entries)


def pack_files(files: Sequence[tuple[str, bytes]], param: str) -> bytes:
    """Return a zip file of files with their paths. Raises InvalidValue that names `param`. Call it in a thread."""
    buffer = BytesIO()
    with _explain(param), ZipFile(buffer, "w") as archive:
        if len({check_path(path) for path, _ in files}) < len(files):
            raise _BundleRefused("a path occurs twice")
        for path, data in files:
            archive.writestr(ZipInfo(path, _DATE), data, ZIP_DEFLATED)
    return buffer.getvalue()


@contextmanager
def _explain(param: str) -> Iterator[None]:
    try:
        yield
    except (_BundleRefused, FileRefused) as error:
        raise InvalidValue(f"The skill is not accepted: {error}.", param=param) from None
    except _ZIP_ERRORS as error:
        raise InvalidValue(f"The skill is not a valid zip file: {str(error)[:200]}.", param=param) from None


def decode_base64(text: str, param: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise InvalidValue("The data of the skill is not valid base64.", param=param) from None


def check_texts(name: str, description: str) -> tuple[str, str]:
    """Return name and description on one line each. Raises ValueError with a sentence's end if they do not fit."""
    name, description = (" ".join(text.split()) for text in (name, description))
    for label, text, limit in (("name", name, MAX_NAME_LENGTH), ("description", description, MAX_DESCRIPTION_LENGTH)):
        if not 0 < len(text) <= limit or not text.isprintable():
            raise ValueError(f"its {label} has 1 to {limit} printable characters")
    return name, description


def _list_files(entries: Sequence[ZipInfo]) -> dict[str, ZipInfo]:
    """Return the files by their paths, without folders."""
    found: dict[str, ZipInfo] = {}
    for entry in entries:
        _check_kind(entry)
        path = check_path(entry.orig_filename.removesuffix("/"))
        if "\\" in path or len(path.encode()) > _MAX_PATH_BYTES:
            raise _BundleRefused(f"a path has at most {_MAX_PATH_BYTES} bytes and no backslash")
        if entry.is_dir():
            continue
        if path in found:
            raise _BundleRefused(f"the path {path!r} occurs twice")
        found[path] = entry
    folders = {path.rsplit("/", depth)[0] for path in found for depth in range(1, path.count("/") + 1)}
    if clash := folders & found.keys():
        raise _BundleRefused(f"{min(clash)!r} is a file and a folder")
    if len(found) > MAX_FILES:
        raise _BundleRefused(f"it has more than {MAX_FILES} files")
    if max([entry.file_size for entry in found.values()], default=0) > MAX_FILE_BYTES:
        raise _BundleRefused(f"a file has more than {MAX_FILE_BYTES:,} bytes")
    if sum([entry.file_size for entry in found.values()]) > MAX_UNPACKED_BYTES:
        raise _BundleRefused(f"all files together have more than {MAX_UNPACKED_BYTES:,} bytes")
    return found


def _check_kind(entry: ZipInfo) -> None:
    kind = stat.S_IFMT(entry.external_attr >> 16)
    if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
        raise _BundleRefused("it has links or other entries that are no files")
    if entry.is_dir() and entry.file_size:
        raise _BundleRefused("it has a folder with content of its own")
    if entry.flag_bits & _ENCRYPTED or entry.compress_type not in (ZIP_STORED, ZIP_DEFLATED):
        raise _BundleRefused("its files are encrypted, or compressed by another method than deflate")


def _find_folder(files: dict[str, ZipInfo]) -> dict[str, ZipInfo]:
    """Return the files by their paths in the folder of the only manifest, which has all of them."""
    manifests = [path for path in files if path.rpartition("/")[2].lower() == MANIFEST.lower()]
    if len(manifests) != 1:
        raise _BundleRefused(f"it has {len(manifests)} files {MANIFEST} instead of one")
    folder, _, _ = manifests[0].rpartition("/")
    prefix = f"{folder}/" if folder else ""
    if "/" in folder or not all(path.startswith(prefix) for path in files):
        raise _BundleRefused(f"it is not one folder with {MANIFEST} and the other files")
    manifest = files.pop(manifests[0])
    return {**{path.removeprefix(prefix): entry for path, entry in files.items()}, MANIFEST: manifest}


def _read_manifest(archive: ZipFile, entry: ZipInfo) -> tuple[str, str]:
    if entry.file_size > _MAX_MANIFEST_BYTES:
        raise _BundleRefused(f"{MANIFEST} has more than {_MAX_MANIFEST_BYTES:,} bytes")
    try:
        fields = parse_front_matter(archive.read(entry).decode())
        return check_texts(fields.get("name", ""), fields.get("description", ""))
    except UnicodeDecodeError:
        raise _BundleRefused(f"{MANIFEST} is not UTF-8") from None
    except ValueError as error:
        raise _BundleRefused(f"{MANIFEST}: {error}") from None


def parse_front_matter(text: str) -> dict[str, str]:
    """Return the fields between the first two lines `---`: plain, quoted and block scalars of YAML on the top level.

    Nested values become meaningless text. Raises ValueError if there is no front matter.
    """
    lines = text.removeprefix("\ufeff").splitlines()
    ends = [number for number, line in enumerate(lines) if line.rstrip() == "---"]
    if len(ends) < 2 or ends[0] != 0:
        raise ValueError("it begins with a front matter between two lines of three dashes")
    fields: dict[str, list[str]] = {}
    latest: list[str] = []
    for line in lines[1 : ends[1]]:
        if found := _FIELD.fullmatch(line):
            latest = fields[found[1]] = [found[2] or ""]
        elif not line.lstrip().startswith("#"):
            latest.append(line.strip())
    return {name: _join_scalar(parts) for name, parts in fields.items()}


def _join_scalar(parts: list[str]) -> str:
    if _BLOCK.fullmatch(parts[0].strip()):
        return " ".join(parts[1:]).strip()
    value = " ".join(parts).strip()
    if len(value) > 1 and value[0] == value[-1] == "'":
        return value[1:-1].replace("''", "'")
    if len(value) > 1 and value[0] == value[-1] == '"':
        return re.sub(r"\\(.)", lambda found: " " if found[1] in "nrt" else found[1], value[1:-1])
    return value.partition(" #")[0].rstrip()
