"""Files of a container, as the sandbox process reads and writes them.

Code in the container may have put links, FIFOs, devices of any name, or a million entries there. Paths are opened with
openat2 below the folder, without following links, and only regular files of the container's user are read.
"""

import json
import os
import stat
from collections.abc import Collection, Iterator
from contextlib import suppress
from errno import ELOOP, ENXIO, EXDEV
from typing import Any, NamedTuple

from antiphon.sandbox.worker.paths import MAX_DEPTH, MAX_PATH_BYTES, FileRefused, check_path
from antiphon.sandbox.worker.syscalls import open_inside

SHARED_MODE = 0o755  # of files and folders that the user of a container reads and does not own
_FOLDER = os.O_RDONLY | os.O_DIRECTORY
_FOLDER_BYTES = 4096  # of an entry, for the sum: empty files fill a disk too
_MAX_LIST_BYTES = 3 * 1024 * 1024  # of a list of files: a frame with a larger header ends its connection
_ENTRY_BYTES = 48  # of a file in the list, without its path


class Stamp(NamedTuple):
    """The properties of a file that differ after a change."""

    inode: int
    mtime: int
    size: int


class Survey(NamedTuple):
    """The contents of a folder: regular files with paths by which they can be read, and sums over all entries."""

    files: dict[str, Stamp]
    size: int
    entries: int
    too_deep: bool


class Folder:
    """A folder of a container, held open."""

    def __init__(self, path: str, uid: int, is_shared: bool = False) -> None:
        """`is_shared`: all users may read and execute what is written."""
        self._uid = uid
        self._is_shared = is_shared
        self.number = os.open(path, _FOLDER | os.O_CLOEXEC | os.O_NOFOLLOW)

    def close(self) -> None:
        os.close(self.number)

    def restore_mode(self) -> None:
        """Let the user of the container enter the folder, whatever code has done."""
        os.fchmod(self.number, 0o700)

    def read(self, path: str, offset: int, count: int) -> tuple[bytes, int]:
        """Return a part of a file, and the size of the whole."""
        number = self._open(check_path(path), os.O_RDONLY)
        try:
            return os.pread(number, count, offset), os.fstat(number).st_size
        finally:
            os.close(number)

    def write(self, path: str, offset: int, data: bytes) -> None:
        """Write a part of a file; the first part replaces it, and creates its folders."""
        check_path(path)
        self._make_parents(path)
        created = os.O_CREAT | os.O_TRUNC if offset == 0 else 0
        number = self._open(path, os.O_WRONLY | created)
        try:
            if os.geteuid() == 0:
                os.fchown(number, self._uid, self._uid)
            if self._is_shared:
                os.fchmod(number, SHARED_MODE)
            written = 0
            while written < len(data):
                written += os.pwrite(number, data[written:], offset + written)
        finally:
            os.close(number)

    def remove(self, path: str) -> None:
        """Delete a file or a link; a folder is refused."""
        folder, _, name = check_path(path).rpartition("/")
        try:
            parent = open_inside(self.number, folder or ".", os.O_PATH | os.O_DIRECTORY)
        except OSError as error:
            raise _explain(error)
        try:
            os.unlink(name, dir_fd=parent)
        except OSError as error:
            raise _explain(error)
        finally:
            os.close(parent)

    def _open(self, path: str, flags: int) -> int:
        try:
            number = open_inside(self.number, path, flags & ~os.O_TRUNC, 0o600 if flags & os.O_CREAT else 0)
        except OSError as error:
            raise _explain(error)
        status = os.fstat(number)
        is_new = flags & os.O_CREAT and status.st_nlink == 1 and status.st_uid == os.geteuid()
        if not stat.S_ISREG(status.st_mode) or not (is_new or status.st_uid == self._uid):
            os.close(number)
            raise FileRefused("not_a_file", "this is not a regular file of the container")
        if flags & os.O_TRUNC:  # not before it is known to be a regular file
            os.ftruncate(number, 0)
        return number

    def _make_parents(self, path: str) -> None:
        names = path.split("/")[:-1]
        for count in range(1, len(names) + 1):
            folder, _, name = "/".join(names[:count]).rpartition("/")
            try:
                parent = open_inside(self.number, folder or ".", _FOLDER)
            except OSError as error:
                raise _explain(error)
            try:
                with suppress(FileExistsError):
                    os.mkdir(name, 0o700, dir_fd=parent)
                    if os.geteuid() == 0:
                        os.chown(name, self._uid, self._uid, dir_fd=parent, follow_symlinks=False)
                    if self._is_shared:
                        os.chmod(name, SHARED_MODE, dir_fd=parent)
            finally:
                os.close(parent)

    def survey(self, max_entries: int) -> Survey:
        """Look at all entries, but stop at a maximum."""
        files: dict[str, Stamp] = {}
        size = entries = 0
        for path, status in self._walk():
            entries += 1
            size += status.st_blocks * 512 + _FOLDER_BYTES
            if stat.S_ISREG(status.st_mode) and path.isprintable() and len(path.encode()) <= MAX_PATH_BYTES:
                files[path] = Stamp(status.st_ino, status.st_mtime_ns, status.st_size)
            if entries > max_entries or path.count("/") > MAX_DEPTH:
                return Survey(files, size, entries, too_deep=entries <= max_entries)
        return Survey(files, size, entries, too_deep=False)

    def _open_folder(self, path: str) -> int:
        """Open a folder. One that code has closed for its own user is opened again, else it could hide files in it."""
        try:
            return open_inside(self.number, path, _FOLDER)
        except PermissionError:
            closed = open_inside(self.number, path, os.O_PATH | os.O_DIRECTORY)
            try:
                os.chmod(f"/proc/self/fd/{closed}", 0o700)
            finally:
                os.close(closed)
            return open_inside(self.number, path, _FOLDER)

    def _walk(self) -> Iterator[tuple[str, os.stat_result]]:
        pending = [""]
        while pending:
            folder = pending.pop()
            try:
                number = self._open_folder(folder or ".")
            except OSError:  # removed meanwhile, or another mount
                continue
            try:
                with os.scandir(number) as entries:
                    for entry in entries:
                        with suppress(OSError):
                            path = f"{folder}/{entry.name}" if folder else entry.name
                            status = entry.stat(follow_symlinks=False)
                            yield path, status
                            if stat.S_ISDIR(status.st_mode):
                                pending.append(path)
            finally:
                os.close(number)


def list_files(files: dict[str, Stamp], paths: Collection[str]) -> tuple[list[dict[str, Any]], int]:
    """Return files with their sizes, sorted by path, and how many of them a message has no room for."""
    listed, room = list[dict[str, Any]](), _MAX_LIST_BYTES
    for path in sorted(paths):
        room -= len(json.dumps(path)) + _ENTRY_BYTES
        if room >= 0:
            listed.append({"path": path, "size": files[path].size})
    return listed, len(paths) - len(listed)


def _explain(error: OSError) -> FileRefused:
    if error.errno in (ELOOP, EXDEV, ENXIO) or isinstance(error, IsADirectoryError | PermissionError):
        return FileRefused("not_a_file", "this is not a regular file of the container")
    if isinstance(error, FileNotFoundError | NotADirectoryError):
        return FileRefused("file_not_found", "there is no such file")
    return FileRefused("invalid_path", f"the file cannot be opened: {error.strerror}")


def remove_tree(path: str) -> None:
    """Delete a folder whose processes have ended. Folders may be nested deeper than paths and recursion can go."""
    with suppress(FileNotFoundError):
        root = os.open(path, _FOLDER | os.O_NOFOLLOW)
        try:
            empty_folder(root)
        finally:
            os.close(root)
        os.rmdir(path)


def empty_folder(root: int) -> None:
    """Delete everything in an open folder."""
    while names := os.listdir(root):
        for name in names:
            _remove_entry(root, name)


def _remove_entry(root: int, name: str) -> None:
    """Delete an entry of the root. The folders in it become entries of the root, with random names."""
    if not stat.S_ISDIR(os.stat(name, dir_fd=root, follow_symlinks=False).st_mode):
        os.unlink(name, dir_fd=root)
        return
    os.chmod(name, 0o700, dir_fd=root)  # nothing runs any more that could replace it by a link
    folder = os.open(name, _FOLDER | os.O_NOFOLLOW, dir_fd=root)
    try:
        for child in os.listdir(folder):
            if stat.S_ISDIR(os.stat(child, dir_fd=folder, follow_symlinks=False).st_mode):
                os.chmod(child, 0o700, dir_fd=folder)  # renaming a folder changes its entry for the parent
                os.rename(child, os.urandom(16).hex(), src_dir_fd=folder, dst_dir_fd=root)
            else:
                os.unlink(child, dir_fd=folder)
    finally:
        os.close(folder)
    os.rmdir(name, dir_fd=root)
