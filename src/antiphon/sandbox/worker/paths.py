"""Paths in containers, which clients and code may choose, and the flags of interpreters."""

SKILLS = "/home/oai/skills"
# Flags of every interpreter of the sandbox: isolated, without bytecode files, with UTF-8 whatever the locale is.
PYTHON_FLAGS = ("-I", "-B", "-X", "utf8")
MAX_DEPTH = 32
MAX_PATH_BYTES = 1024


class FileRefused(Exception):
    """The path is not valid, or there is no regular file. `code` is part of the protocol."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


def check_path(path: str) -> str:
    """Return a relative path of plain names."""
    parts = path.split("/")
    if (
        not path
        or len(path.encode()) > MAX_PATH_BYTES
        or len(parts) > MAX_DEPTH
        or any(part in ("", ".", "..") for part in parts)
    ):
        raise FileRefused("invalid_path", "a path consists of at most 1024 bytes and 32 names, without . and ..")
    if any(len(part.encode()) > 255 for part in parts) or not path.isprintable():
        raise FileRefused("invalid_path", "names in a path have at most 255 bytes and no control characters")
    return path
