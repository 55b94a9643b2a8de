"""The keys of clients, as an operator gives them for the simple case: by flag or variable, or in a file.

A line of the file is KEY, or TENANT KEY; empty lines and those that begin with # say nothing. A key by itself is of the
tenant "default" and may do everything; one of a named tenant may not administer.

The keys that seal reasoning, as an operator writes them: 32 bytes in base64, or @FILE with one on each line.

A key on the command line is seen by everyone on the machine; a variable or a file is not.

Files with keys: text, named by a flag that every complaint repeats, and never a line of what is in them.
"""

import base64
import binascii
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec
from msgspec import Struct

from antiphon.config.table import Config
from antiphon.config.value_types import Key, Tenant
from antiphon.errors import StartupError


def read_key_file(path: Path, flag: str, expected: str) -> str:
    """Raises StartupError."""
    try:
        return path.read_text("utf-8")
    except OSError as error:
        raise StartupError(f"{path}, which {flag} names, cannot be read: {error.strerror}.") from None
    except UnicodeDecodeError:
        raise StartupError(f"{path}, which {flag} names, is not a text; {expected}.") from None


_EXPECTED = "expected KEY or TENANT KEY, the tenant in small letters, digits, dots, dashes and underscores"


class GivenKey(Struct, frozen=True):
    place: str  # where it was given: flag 1, line 3
    key: str
    tenant: str | None = None  # None: the one that all are without keys

    def __repr__(self) -> str:
        """Without the key."""
        return f"GivenKey(place={self.place!r}, tenant={self.tenant!r})"


def given_keys(config: Config) -> list[GivenKey]:
    """Raises StartupError, which does not repeat a key."""
    given = [GivenKey(f"flag {number}", key) for number, key in enumerate(config.api_key, 1)]
    if config.api_key_file is not None:
        given += _read(config.api_key_file)
    owners: dict[str, str | None] = {}
    for one in given:
        if owners.setdefault(one.key, one.tenant) != one.tenant:
            raise StartupError(f"The API key of {one.place} was given before, for another tenant.")
    return given


def _read(path: Path) -> list[GivenKey]:
    keys = [*_keys(path)]
    if not keys:
        raise StartupError(f"{path}, which --api-key-file names, has no key in it; {_EXPECTED}.")
    return keys


def _keys(path: Path) -> Iterator[GivenKey]:
    for number, line in enumerate(read_key_file(path, "--api-key-file", _EXPECTED).splitlines(), 1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        tenant = words[0] if len(words) > 1 else None
        if len(words) > 2 or not _fits(words[-1], Key) or not (tenant is None or _fits(tenant, Tenant)):
            raise StartupError(
                f"{path}, which --api-key-file names, has a line {number} that does not fit; {_EXPECTED}."
            )
        yield GivenKey(f"line {number}", words[-1], tenant)


def _fits(text: str, kind: object) -> bool:
    try:
        msgspec.convert(text, kind)
    except msgspec.ValidationError:
        return False
    return True


_BYTES = 32
_EXPECTED_REASONING_KEY = f"expected {_BYTES} bytes in base64, as `openssl rand -base64 {_BYTES}` writes them, or @FILE"


def read_keys(given: Iterable[str]) -> list[bytes]:
    """In their order. Raises StartupError, which does not repeat a key."""
    return [key for text in given for key in _reasoning_keys(text)]


def _reasoning_keys(text: str) -> Iterator[bytes]:
    if not text.startswith("@"):
        yield _key(text, "--reasoning-key has a value that does not fit")
        return
    path = Path(text[1:]).expanduser()
    lines = [line.strip() for line in read_key_file(path, "--reasoning-key", _EXPECTED_REASONING_KEY).splitlines()]
    keys = [_key(line, f"{path}, which --reasoning-key names, has a line that does not fit") for line in lines if line]
    if not keys:
        raise StartupError(f"{path}, which --reasoning-key names, has no key in it; {_EXPECTED_REASONING_KEY}.")
    yield from keys


def _key(text: str, wrong: str) -> bytes:
    """Either alphabet of base64 will do, with or without the padding."""
    plain = text.rstrip("=").replace("-", "+").replace("_", "/")
    try:
        key = base64.b64decode(plain + "=" * (-len(plain) % 4), validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if len(key) != _BYTES:
        raise StartupError(f"{wrong}; {_EXPECTED_REASONING_KEY}.")
    return key
