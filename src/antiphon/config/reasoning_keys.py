"""The keys that seal reasoning, as an operator writes them: 32 bytes in base64, or @FILE with one on each line.

A key on the command line is seen by everyone on the machine; a variable or a file is not.
"""

import base64
import binascii
from collections.abc import Iterable, Iterator
from pathlib import Path

from antiphon.config.key_files import read_key_file
from antiphon.errors import StartupError

_BYTES = 32
_EXPECTED = f"expected {_BYTES} bytes in base64, as `openssl rand -base64 {_BYTES}` writes them, or @FILE"


def read_keys(given: Iterable[str]) -> list[bytes]:
    """In their order. Raises StartupError, which does not repeat a key."""
    return [key for text in given for key in _keys(text)]


def _keys(text: str) -> Iterator[bytes]:
    if not text.startswith("@"):
        yield _key(text, "--reasoning-key has a value that does not fit")
        return
    path = Path(text[1:]).expanduser()
    lines = [line.strip() for line in read_key_file(path, "--reasoning-key", _EXPECTED).splitlines()]
    keys = [_key(line, f"{path}, which --reasoning-key names, has a line that does not fit") for line in lines if line]
    if not keys:
        raise StartupError(f"{path}, which --reasoning-key names, has no key in it; {_EXPECTED}.")
    yield from keys


def _key(text: str, wrong: str) -> bytes:
    """Either alphabet of base64 will do, with or without the padding."""
    plain = text.rstrip("=").replace("-", "+").replace("_", "/")
    try:
        key = base64.b64decode(plain + "=" * (-len(plain) % 4), validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if len(key) != _BYTES:
        raise StartupError(f"{wrong}; {_EXPECTED}.")
    return key
