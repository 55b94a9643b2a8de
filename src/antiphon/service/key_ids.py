"""What keys are called that were given by flag, variable or file: by what they are, not by where they stand.

So logs and limits stay with a key when others come and go. The name is made with a secret that only the store has: who
reads a log cannot try whether a guess of a key is right. Without a store that lasts, names last as long as the server.
"""

from hashlib import blake2b
from secrets import token_bytes
from typing import Protocol

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
