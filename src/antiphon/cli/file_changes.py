"""Changes of files of other programs: shown as a difference, written atomically, and taken back byte for byte.

What a file contained is saved before it is changed. A change that follows another one, without a change by somebody
else in between, becomes part of that one: both are taken back together.
"""

import difflib
import os
import tempfile
from contextlib import suppress
from pathlib import Path

import msgspec
from msgspec import Struct

from antiphon.errors import StartupError

_PRIVATE, _PUBLIC = 0o600, 0o644
_MAX_SNAPSHOTS = 20


class FileChange(Struct, frozen=True):
    """The content of a file before and after; None if there is no file."""

    path: str
    before: bytes | None
    after: bytes | None

    def render(self, secret: str = "") -> str:
        """Render the difference, without the secret."""
        old, new = (_split_lines(content) for content in (self.before, self.after))
        source, target = ("/dev/null" if content is None else self.path for content in (self.before, self.after))
        text = "".join(difflib.unified_diff(old, new, source, target))
        return text.replace(secret, "***") if secret else text


class Snapshot(Struct, frozen=True):
    changes: list[FileChange]
    folders: list[str]  # that were made for the files, the outermost first


class ChangeLog:
    """The changes for one client, in a file."""

    def __init__(self, path: Path) -> None:
        self._path = str(path)
        try:
            content = read_content(self._path)
            self._snapshots = [] if content is None else msgspec.json.decode(content, type=list[Snapshot])
        except msgspec.MsgspecError:
            raise StartupError(f"{path} is damaged; it has earlier contents of files. Move it away.") from None

    @property
    def latest(self) -> Snapshot | None:
        return self._snapshots[-1] if self._snapshots else None

    def apply(self, changes: list[FileChange], private: bool) -> None:
        """Save what the files contain, then change them. `private`: new files are for their owner only."""
        folders = [str(folder) for change in changes for folder in _list_missing_folders(change.path)]
        first: dict[str, FileChange] = {}
        if (latest := self.latest) and all(read_content(change.path) == change.after for change in latest.changes):
            first, folders = {change.path: change for change in latest.changes}, [*latest.folders, *folders]
            self._snapshots.pop()
        merged = {
            change.path: FileChange(change.path, first.get(change.path, change).before, change.after)
            for change in changes
        }
        self._snapshots.append(Snapshot([*{**first, **merged}.values()], [*dict.fromkeys(folders)]))
        self._save()
        for change in changes:
            _write(change, private)

    def revert(self, changes: list[FileChange]) -> None:
        """Take the latest changes back; `changes` do it."""
        for change in changes:
            _write(change, private=False)
        for folder in reversed(self._snapshots.pop().folders):
            with suppress(OSError):  # something else is in it meanwhile
                Path(folder).rmdir()
        self._save()

    def _save(self) -> None:
        content = msgspec.json.encode(self._snapshots[-_MAX_SNAPSHOTS:])
        _write(FileChange(self._path, read_content(self._path), content), private=True)


def read_content(path: str) -> bytes | None:
    try:
        return Path(path).read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StartupError(f"{path} cannot be read: {error.strerror}.") from None


def _write(change: FileChange, private: bool) -> None:
    """Replace a file as a whole, or remove it. A link stays, and what it refers to is changed."""
    path = Path(change.path).resolve()
    if read_content(change.path) != change.before:
        raise StartupError(f"{path} was changed by another program meanwhile. Try again.")
    try:
        if change.after is None:
            path.unlink(missing_ok=True)
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        mode = path.stat().st_mode & 0o777 if path.exists() else _PRIVATE if private else _PUBLIC
        with tempfile.TemporaryDirectory(prefix=f".{path.name}.", dir=path.parent) as folder:
            temporary = Path(folder, path.name)
            with temporary.open("wb") as file:
                temporary.chmod(mode)
                file.write(change.after)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
    except OSError as error:
        raise StartupError(f"{path} cannot be written: {error.strerror}.") from None


def _list_missing_folders(path: str) -> list[Path]:
    return [folder for folder in reversed(Path(path).parents) if not folder.exists()]


def _split_lines(content: bytes | None) -> list[str]:
    return [f"{line}\n" for line in (content or b"").decode("utf-8", "replace").splitlines()]
