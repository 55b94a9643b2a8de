"""How a key is made and known again: `ak_`, the digits of its id, and a secret of 192 bits.

The form is one that scanners for secrets and people recognise. Of the key itself nothing is kept but a digest: with so
much chance in it, no slower digest is needed.

What keys are called that were given by flag, variable or file: by what they are, not by where they stand.

So logs and limits stay with a key when others come and go. The name is made with a secret that only the store has: who
reads a log cannot try whether a guess of a key is right. Without a store that lasts, names last as long as the server.
"""

import re
import secrets
from collections.abc import Collection
from hashlib import blake2b, sha256
from secrets import token_bytes
from typing import Protocol

import msgspec

from antiphon.config.value_types import Tenant
from antiphon.errors import StartupError
from antiphon.ids import is_id, new_id
from antiphon.service.access.principal import INFERENCE, SCOPES
from antiphon.stores.base import ApiKey

MARK = b"ak_"
_FORM = re.compile(rb"ak_([0-9a-f]{32})_[0-9a-f]{48}")
_SECRET_BYTES = 24
_LONGEST_NAME = 100


def issue(tenant: str, name: str, scopes: Collection[str], created: float, expires: float | None) -> tuple[ApiKey, str]:
    """The row to be kept, and the key, which nobody can tell again. Raises StartupError for what does not fit."""
    check_tenant(tenant)
    granted = frozenset(scopes or (INFERENCE,))
    if unknown := sorted(granted - SCOPES):
        raise StartupError(f"There is no scope {unknown[0]!r}; expected {' or '.join(sorted(SCOPES))}.")
    if len(name) > _LONGEST_NAME or not (name.isprintable() or not name):
        raise StartupError(f"The name of a key is one line of at most {_LONGEST_NAME} characters.")
    if expires is not None and expires <= created:
        raise StartupError("The key would have expired already.")
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
            f"{tenant!r} cannot be the name of a tenant; expected up to 63 small letters, digits, dots, dashes and"
            " underscores, a letter or digit first."
        ) from None


def id_in(key: bytes) -> str | None:
    """Of the row that a key would have; None for what we cannot have made."""
    form = _FORM.fullmatch(key)
    return f"key_{form[1].decode()}" if form else None


def is_key_id(text: str) -> bool:
    return is_id(text, "key")


_SHARED = "key_ids"  # under which the store has the secret
_BYTES = 6


class Shares(Protocol):
    async def shared(self, name: str, new: bytes) -> bytes: ...


def new_secret() -> bytes:
    return token_bytes(32)


async def secret_of(store: Shares) -> bytes:
    """The same for all who share the store."""
    return await store.shared(_SHARED, new_secret())


def id_of(secret: bytes, key: str) -> str:
    return f"given_{blake2b(key.encode(), key=secret, digest_size=_BYTES).hexdigest()}"
