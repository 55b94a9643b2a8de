"""Sealed reasoning and compactions: a client carries what it cannot read, change or give to another tenant.

AES-256-GCM, with a key of its own for each of them, so that one key may serve for ever. The form, the key's id, the
kind and the tenant are bound to what is sealed. The first key seals; each of them opens, so that a new key can be put
in front while what was sealed before is still about.
"""

import asyncio
import binascii
import hmac
import secrets
from collections.abc import Sequence
from functools import partial
from hashlib import blake2b

from antiphon.core.encrypted_reasoning import FORM, Seal, opened, sealed_size
from antiphon.errors import InvalidEncryptedContent
from antiphon.protocol.types.items import InputItem

KEY_BYTES = 32
REASONING, COMPACTION = b"reasoning", b"compaction"  # kinds: one cannot be passed for another
FOREIGN = "input[*].encrypted_content"  # the name of what was sealed elsewhere, and so changes nothing

_ID, _SALT, _NONCE, _TAG = 8, 16, 12, 16
_HEAD = _ID + _SALT + _NONCE
_AT_ONCE = 64 * 1024  # characters that are opened where they are met; more goes to a thread


def new_key() -> bytes:
    return secrets.token_bytes(KEY_BYTES)


class Unsealable(Exception):
    """Why it cannot be opened, in a sentence for its client."""


class Keyring:
    """Without keys until it is given one: who starts a server sees to that before the first request."""

    def __init__(self, keys: Sequence[bytes] = ()) -> None:
        self._keys = {_id(key): key for key in keys}

    def __len__(self) -> int:
        return len(self._keys)

    def add(self, key: bytes) -> None:
        """Behind those that are there."""
        self._keys.setdefault(_id(key), key)

    def seals(self, tenant: str) -> Seal:
        return partial(self.seal, tenant)

    def seal(self, tenant: str, thought: str) -> str:
        return self.seal_bytes(tenant, thought.encode("utf-8", "surrogatepass"), REASONING)

    def seal_bytes(self, tenant: str, plain: bytes, kind: bytes) -> str:
        from antiphon.service.encryption.aes import encrypt

        key_id, key = next(iter(self._keys.items()))
        salt, nonce = secrets.token_bytes(_SALT), secrets.token_bytes(_NONCE)
        hidden = encrypt(_own(key, salt), nonce, plain, _bound(key_id, tenant, kind))
        return FORM + _text(key_id + salt + nonce + hidden)

    def open(self, tenant: str, sealed: str) -> str:
        """Raises Unsealable for everything but what `seal` gave for this tenant, to the letter."""
        return self.open_bytes(tenant, sealed, REASONING).decode("utf-8", "surrogatepass")

    def open_bytes(self, tenant: str, sealed: str, kind: bytes) -> bytes:
        from antiphon.service.encryption.aes import decrypt

        raw = _bytes(sealed)
        key_id, salt, nonce = raw[:_ID], raw[_ID : _ID + _SALT], raw[_ID + _SALT : _HEAD]
        if key_id not in self._keys:
            raise Unsealable("it was sealed with a key that this server does not have")
        plain = decrypt(_own(self._keys[key_id], salt), nonce, raw[_HEAD:], _bound(key_id, tenant, kind))
        if plain is None:
            raise Unsealable("it was changed, or sealed for somebody else")
        return plain

    async def opened(
        self, tenant: str, items: list[InputItem], field: str = "input"
    ) -> tuple[list[InputItem], list[str]]:
        """What a client sent, opened; and the names of what changes nothing. Gives the same list if nothing is sealed.

        Raises InvalidEncryptedContent, with the item as `param`.
        """
        size = sealed_size(items)
        if not size:
            return items, []
        open_ = partial(self._open_at, tenant, field)
        found, foreign = opened(items, open_) if size <= _AT_ONCE else await asyncio.to_thread(opened, items, open_)
        return found, [FOREIGN] if foreign else []

    def _open_at(self, tenant: str, field: str, index: int, sealed: str) -> str:
        try:
            return self.open(tenant, sealed)
        except Unsealable as error:
            raise unverified(error, f"{field}[{index}].encrypted_content") from None


def unverified(error: Unsealable, param: str) -> InvalidEncryptedContent:
    return InvalidEncryptedContent(
        f"The encrypted content of this item could not be verified: {error}. Send it back as it came, or leave the item"
        " out.",
        param=param,
    )


def _id(key: bytes) -> bytes:
    """It says which key it was, and nothing about the key."""
    return blake2b(key, digest_size=_ID, person=b"antiphon-key-id").digest()


def _own(key: bytes, salt: bytes) -> bytes:
    """The key of one thought: were it the same for all, their nonces might one day meet."""
    return hmac.digest(key, salt, "sha256")


def _bound(key_id: bytes, tenant: str, kind: bytes) -> bytes:
    return b"\0".join([FORM.encode(), key_id.hex().encode(), kind, tenant.encode("utf-8", "surrogatepass")])


def _text(raw: bytes) -> str:
    return binascii.b2a_base64(raw, newline=False).decode()


def _bytes(sealed: str) -> bytes:
    """Base64 can say the same in several ways: only ours counts."""
    if not sealed.startswith(FORM):
        raise Unsealable("it has a form that this server does not know")
    body = sealed[len(FORM) :]
    try:
        raw = binascii.a2b_base64(body)
    except ValueError:
        raw = b""
    if len(raw) < _HEAD + _TAG or _text(raw) != body:
        raise Unsealable("it was changed")
    return raw
