"""Keys from the settings: API keys of clients, and encryption keys for reasoning.

API keys are given by flag, by variable, or in a file whose lines are KEY or TENANT KEY; empty lines and lines that
begin with # are ignored. A key without a tenant belongs to the tenant "default" and has all scopes; a key with a tenant
does not have the admin scope.

Reasoning keys are 32 bytes in base64, or @FILE with one key per line. Keys of sandbox workers are in a file.

Keys on the command line are visible to all users of the machine; keys in a variable or a file are not. Error messages
name the flag and the file, and never repeat the content.
"""

import base64
import binascii
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec
from msgspec import Struct

from antiphon.config.setting_types import Key, Tenant
from antiphon.config.settings import Config
from antiphon.errors import StartupError


def read_key_file(path: Path, flag: str, expected: str) -> str:
    """Read a text file of keys that `flag` names. Raises StartupError."""
    try:
        return path.read_text("utf-8")
    except OSError as error:
        raise StartupError(f"{path}, which {flag} names, cannot be read: {error.strerror}.") from None
    except UnicodeDecodeError:
        raise StartupError(f"{path}, which {flag} names, is not a text file; {expected}.") from None


_EXPECTED = "expected KEY or TENANT KEY, the tenant in lower-case letters, digits, dots, dashes and underscores"


class ConfiguredKey(Struct, frozen=True):
    origin: str  # where it is configured: "flag 1", "line 3"
    key: str
    tenant: str | None = None  # None: the default tenant

    def __repr__(self) -> str:
        """Omits the key."""
        return f"ConfiguredKey(origin={self.origin!r}, tenant={self.tenant!r})"


def load_configured_keys(config: Config) -> list[ConfiguredKey]:
    """Return the API keys of the settings. Raises StartupError, which does not repeat a key."""
    keys = [ConfiguredKey(f"flag {number}", key) for number, key in enumerate(config.server.api_key, 1)]
    if (path := config.server.api_key_file) is not None:
        if not (from_file := [*_parse_api_keys(path)]):
            raise StartupError(f"{path}, which --api-key-file names, contains no key; {_EXPECTED}.")
        keys += from_file
    owners: dict[str, str | None] = {}
    for configured_key in keys:
        if owners.setdefault(configured_key.key, configured_key.tenant) != configured_key.tenant:
            raise StartupError(f"The API key of {configured_key.origin} is already configured for another tenant.")
    return keys


def _parse_api_keys(path: Path) -> Iterator[ConfiguredKey]:
    for number, line in enumerate(read_key_file(path, "--api-key-file", _EXPECTED).splitlines(), 1):
        columns = line.split()
        if not columns or columns[0].startswith("#"):
            continue
        tenant = columns[0] if len(columns) > 1 else None
        if len(columns) > 2 or not _is_valid(columns[-1], Key) or not (tenant is None or _is_valid(tenant, Tenant)):
            raise StartupError(f"{path}, which --api-key-file names, is invalid at line {number}; {_EXPECTED}.")
        yield ConfiguredKey(f"line {number}", columns[-1], tenant)


def _is_valid(text: str, kind: object) -> bool:
    try:
        msgspec.convert(text, kind)
    except msgspec.ValidationError:
        return False
    return True


_SANDBOX_KEY_LENGTH = 16
_EXPECTED_SANDBOX_KEY = f"expected keys of at least {_SANDBOX_KEY_LENGTH} characters, one per line"


def load_sandbox_keys(config: Config) -> list[str]:
    """Return the keys of sandbox workers, at least one. Raises StartupError, which does not repeat a key."""
    if (path := config.tools.sandbox_key_file) is None:
        raise StartupError(f"Sandbox workers need a key (--sandbox-key-file); {_EXPECTED_SANDBOX_KEY}.")
    lines = read_key_file(path, "--sandbox-key-file", _EXPECTED_SANDBOX_KEY).splitlines()
    keys = [line.strip() for line in lines if line.strip() and not line.startswith("#")]
    if not keys or any(len(key) < _SANDBOX_KEY_LENGTH or not _is_valid(key, Key) for key in keys):
        raise StartupError(f"{path}, which --sandbox-key-file names, is invalid; {_EXPECTED_SANDBOX_KEY}.")
    return keys


_REASONING_KEY_BYTES = 32
_EXPECTED_REASONING_KEY = (
    f"expected {_REASONING_KEY_BYTES} bytes in base64, as printed by "
    f"`openssl rand -base64 {_REASONING_KEY_BYTES}`, or @FILE"
)


def read_reasoning_keys(values: Iterable[str]) -> list[bytes]:
    """Return the encryption keys in their order. Raises StartupError, which does not repeat a key."""
    return [key for text in values for key in _read_reasoning_key(text)]


def _read_reasoning_key(text: str) -> Iterator[bytes]:
    if not text.startswith("@"):
        yield _decode_key(text, "--reasoning-key is invalid")
        return
    path = Path(text[1:]).expanduser()
    lines = [line.strip() for line in read_key_file(path, "--reasoning-key", _EXPECTED_REASONING_KEY).splitlines()]
    keys = [_decode_key(line, f"{path}, which --reasoning-key names, has an invalid line") for line in lines if line]
    if not keys:
        raise StartupError(f"{path}, which --reasoning-key names, contains no key; {_EXPECTED_REASONING_KEY}.")
    yield from keys


def _decode_key(text: str, message: str) -> bytes:
    """Decode standard or URL-safe base64, with or without padding. `message` is the start of the error message."""
    unpadded = text.rstrip("=").replace("-", "+").replace("_", "/")
    try:
        key = base64.b64decode(unpadded + "=" * (-len(unpadded) % 4), validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if len(key) != _REASONING_KEY_BYTES:
        raise StartupError(f"{message}; {_EXPECTED_REASONING_KEY}.")
    return key
