"""Encrypted reasoning and compactions: clients carry data that they cannot read, change or pass to another tenant.

AES-256-GCM (NIST SP 800-38D) with a derived key for each item, so that one master key never wears out. The format, the
key's id, the kind and the tenant are associated data. The first key encrypts and all keys decrypt, so that a new key
can be put in front while older items are still in use.

Stored compactions stay encrypted; they are decrypted only for a prompt. A compaction that cannot be decrypted is
rejected, because it replaces the complete history before it.

The library for AES is imported on first use: it costs 10 ms and 8 MB.
"""

import asyncio
import binascii
import hmac
import secrets
from collections.abc import Sequence
from functools import partial
from hashlib import blake2b

from antiphon.core.encrypted_reasoning import VERSION_PREFIX, Encrypt, decrypt_items, encrypted_size
from antiphon.core.history.compaction import CompactionMemory, DecryptedCompaction, find_last_compaction, pack, unpack
from antiphon.errors import InvalidEncryptedContent
from antiphon.offload import run_sized
from antiphon.protocol.types.items import Compaction, InputItem

KEY_BYTES = 32
REASONING, COMPACTION = b"reasoning", b"compaction"  # kinds; an item of one kind is not accepted as another
FOREIGN = "input[*].encrypted_content"  # reported as ignored: content encrypted by another server

_KEY_ID_BYTES, _SALT_BYTES, _NONCE_BYTES, _TAG_BYTES = 8, 16, 12, 16
_HEADER_BYTES = _KEY_ID_BYTES + _SALT_BYTES + _NONCE_BYTES


def new_key() -> bytes:
    return secrets.token_bytes(KEY_BYTES)


class DecryptionError(Exception):
    """The reason why content cannot be decrypted, as a clause for the client's error message."""


class Keyring:
    """Encryption keys. A server without configured keys adds one before its first request."""

    def __init__(self, keys: Sequence[bytes] = ()) -> None:
        self._keys = {_key_id(key): key for key in keys}

    def __len__(self) -> int:
        return len(self._keys)

    def add(self, key: bytes) -> None:
        """Add a key after the existing ones."""
        self._keys.setdefault(_key_id(key), key)

    def make_encrypter(self, tenant: str) -> Encrypt:
        return partial(self.encrypt, tenant)

    def encrypt(self, tenant: str, reasoning: str) -> str:
        return self.encrypt_bytes(tenant, reasoning.encode("utf-8", "surrogatepass"), REASONING)

    def encrypt_bytes(self, tenant: str, plaintext: bytes, kind: bytes) -> str:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        key_id, key = next(iter(self._keys.items()))
        salt, nonce = secrets.token_bytes(_SALT_BYTES), secrets.token_bytes(_NONCE_BYTES)
        cipher = AESGCM(_derive_key(key, salt))
        ciphertext = cipher.encrypt(nonce, plaintext, _associated_data(key_id, tenant, kind))
        return VERSION_PREFIX + _encode_base64(key_id + salt + nonce + ciphertext)

    def decrypt(self, tenant: str, encrypted: str) -> str:
        """Decrypt reasoning. Raises DecryptionError unless `encrypt` returned exactly this string for the tenant."""
        return self.decrypt_bytes(tenant, encrypted, REASONING).decode("utf-8", "surrogatepass")

    def decrypt_bytes(self, tenant: str, encrypted: str, kind: bytes) -> bytes:
        from cryptography.exceptions import InvalidTag
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        raw = _decode_base64(encrypted)
        key_id, salt, nonce = (
            raw[:_KEY_ID_BYTES],
            raw[_KEY_ID_BYTES : _KEY_ID_BYTES + _SALT_BYTES],
            raw[_KEY_ID_BYTES + _SALT_BYTES : _HEADER_BYTES],
        )
        if key_id not in self._keys:
            raise DecryptionError("it was encrypted with a key that this server does not have")
        cipher = AESGCM(_derive_key(self._keys[key_id], salt))
        try:
            return cipher.decrypt(nonce, raw[_HEADER_BYTES:], _associated_data(key_id, tenant, kind))
        except InvalidTag:
            raise DecryptionError("it was changed, or encrypted for another tenant") from None

    async def decrypt_items(
        self, tenant: str, items: list[InputItem], field: str = "input"
    ) -> tuple[list[InputItem], list[str]]:
        """Decrypt the reasoning of the items. Returns the items, the same list if none is encrypted, and names of
        ignored fields.

        Raises InvalidEncryptedContent, with the item as `param`.
        """
        if not (size := encrypted_size(items)):
            return items, []
        decrypted, foreign = await run_sized(size, decrypt_items, items, partial(self._decrypt_item, tenant, field))
        return decrypted, [FOREIGN] if foreign else []

    async def encrypt_memory(self, tenant: str, memory: CompactionMemory) -> Compaction:
        """Encrypt in a thread: the memory may contain images."""
        content = await asyncio.to_thread(lambda: self.encrypt_bytes(tenant, pack(memory), COMPACTION))
        return Compaction(encrypted_content=content)

    async def verify_compactions(self, tenant: str, items: Sequence[InputItem], field: str = "input") -> None:
        """Raise InvalidEncryptedContent, with the item as `param`, for a compaction of another server or tenant."""
        for index, item in enumerate(items):
            if isinstance(item, Compaction):
                await self._decrypt_memory(tenant, item, f"{field}[{index}].encrypted_content")

    async def open_last_compaction(
        self, tenant: str, earlier: Sequence[InputItem], input_items: Sequence[InputItem], earlier_param: str
    ) -> tuple[Sequence[InputItem], Sequence[InputItem]]:
        """Return both lists with the last compaction decrypted; core/history/history.py replaces it by its memory.

        `earlier_param`: the request field that refers to the earlier items.
        """
        if (at := find_last_compaction(input_items)) is not None:
            await self.verify_compactions(tenant, input_items[:at])
            return earlier, await self._open_at(tenant, input_items, at, f"input[{at}].encrypted_content")
        if (at := find_last_compaction(earlier)) is not None:
            return await self._open_at(tenant, earlier, at, earlier_param), input_items
        return earlier, input_items

    async def _open_at(self, tenant: str, items: Sequence[InputItem], at: int, param: str) -> Sequence[InputItem]:
        item = items[at]
        assert isinstance(item, Compaction)
        memory = await self._decrypt_memory(tenant, item, param)
        open_item = DecryptedCompaction(id=item.id, encrypted_content=item.encrypted_content, memory=memory)
        return [*items[:at], open_item, *items[at + 1 :]]

    async def _decrypt_memory(self, tenant: str, item: Compaction, param: str) -> CompactionMemory:
        encrypted = item.encrypted_content
        try:
            return await run_sized(len(encrypted), lambda: unpack(self.decrypt_bytes(tenant, encrypted, COMPACTION)))
        except DecryptionError as error:
            raise _unverified_error(error, param) from None

    def _decrypt_item(self, tenant: str, field: str, index: int, encrypted: str) -> str:
        try:
            return self.decrypt(tenant, encrypted)
        except DecryptionError as error:
            raise _unverified_error(error, f"{field}[{index}].encrypted_content") from None


def _unverified_error(error: DecryptionError, param: str) -> InvalidEncryptedContent:
    return InvalidEncryptedContent(
        f"The encrypted content of this item could not be verified: {error}. Send it back unchanged, or leave the item"
        " out.",
        param=param,
    )


def _key_id(key: bytes) -> bytes:
    """Return an identifier of the key that reveals nothing about it."""
    return blake2b(key, digest_size=_KEY_ID_BYTES, person=b"antiphon-key-id").digest()


def _derive_key(key: bytes, salt: bytes) -> bytes:
    """Derive the key of one item: with a single key for all, random nonces could collide eventually."""
    return hmac.digest(key, salt, "sha256")


def _associated_data(key_id: bytes, tenant: str, kind: bytes) -> bytes:
    return b"\0".join([VERSION_PREFIX.encode(), key_id.hex().encode(), kind, tenant.encode("utf-8", "surrogatepass")])


def _encode_base64(raw: bytes) -> str:
    return binascii.b2a_base64(raw, newline=False).decode()


def _decode_base64(encrypted: str) -> bytes:
    """Decode the content. Only the canonical base64 form is accepted, since the same bytes have several encodings."""
    if not encrypted.startswith(VERSION_PREFIX):
        raise DecryptionError("its format is unknown to this server")
    body = encrypted[len(VERSION_PREFIX) :]
    try:
        raw = binascii.a2b_base64(body)
    except ValueError:
        raw = b""
    if len(raw) < _HEADER_BYTES + _TAG_BYTES or _encode_base64(raw) != body:
        raise DecryptionError("it was changed")
    return raw
