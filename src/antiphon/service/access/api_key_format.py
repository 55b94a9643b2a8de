"""API key format: `ak_`, the digits of the key's id, and a secret of 192 bits.

Secret scanners and people recognise the format. Only a digest of the key is stored; with this much entropy a slow hash
is unnecessary.

Keys configured by flag, variable or file get an id derived from the key itself, so logs and limits stay with a key when
others are added or removed. The id is keyed with a secret that only the store holds: log readers cannot verify a guess
of a key. Without a persistent store the ids last as long as the server.
"""

import re
import secrets
from collections.abc import Awaitable, Callable, Collection
from hashlib import blake2b, sha256
from secrets import token_bytes
from typing import Final

import msgspec
from msgspec import Struct

from antiphon.config.setting_types import Tenant
from antiphon.errors import StartupError
from antiphon.ids import is_id, new_id
from antiphon.stores.base import ApiKey

INFERENCE: Final = "inference"
ADMIN: Final = "admin"
SCOPES: Final = frozenset({INFERENCE, ADMIN})

KEY_PREFIX = b"ak_"
_KEY_PATTERN = re.compile(rb"ak_([0-9a-f]{32})_[0-9a-f]{48}")
_SECRET_BYTES = 24
_MAX_NAME_LENGTH = 100

_DIGEST_BYTES = 6


class Principal(Struct, frozen=True, kw_only=True):
    tenant: str
    key: str = ""  # id of the API key that was sent; empty where none is required
    scopes: frozenset[str] = SCOPES


def issue(tenant: str, name: str, scopes: Collection[str], created: float, expires: float | None) -> tuple[ApiKey, str]:
    """Create a key. Returns the row to store and the key, which cannot be recovered. Raises StartupError."""
    check_tenant(tenant)
    granted = frozenset(scopes or (INFERENCE,))
    if unknown := sorted(granted - SCOPES):
        raise StartupError(f"Unknown scope {unknown[0]!r}; expected {' or '.join(sorted(SCOPES))}.")
    if len(name) > _MAX_NAME_LENGTH or not (name.isprintable() or not name):
        raise StartupError(f"The name of a key must be one line of at most {_MAX_NAME_LENGTH} characters.")
    if expires is not None and expires <= created:
        raise StartupError("The expiry time must be in the future.")
    key_id = new_id("key")
    key = f"ak_{key_id.removeprefix('key_')}_{secrets.token_hex(_SECRET_BYTES)}"
    row = ApiKey(
        id=key_id,
        digest=sha256(key.encode()).digest(),
        tenant=tenant,
        name=name,
        scopes=granted,
        created=created,
        expires=expires,
    )
    return row, key


def check_tenant(tenant: str) -> None:
    try:
        msgspec.convert(tenant, Tenant)
    except msgspec.ValidationError:
        raise StartupError(
            f"{tenant!r} is not a valid tenant name; use up to 63 lower-case letters, digits, dots, dashes and"
            " underscores, starting with a letter or digit."
        ) from None


def parse_key_id(key: bytes) -> str | None:
    """Return the row id that the key contains; None if it is not in the format of this server."""
    match = _KEY_PATTERN.fullmatch(key)
    return f"key_{match[1].decode()}" if match else None


def is_key_id(text: str) -> bool:
    return is_id(text, "key")


def new_secret() -> bytes:
    return token_bytes(32)


async def load_secret(shared: Callable[[str, bytes], Awaitable[bytes]]) -> bytes:
    """Return the secret that all servers of the store share, by `Store.shared`."""
    return await shared("key_ids", new_secret())


def make_key_id(secret: bytes, key: str) -> str:
    return f"given_{blake2b(key.encode(), key=secret, digest_size=_DIGEST_BYTES).hexdigest()}"
