"""AES-256-GCM. A module of its own, which is loaded when it is needed: 10 ms and 8 MB that many servers do without."""

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM


def encrypt(key: bytes, nonce: bytes, plain: bytes, bound: bytes) -> bytes:
    """`bound` is not hidden, but whoever decrypts has to know it."""
    return AESGCM(key).encrypt(nonce, plain, bound)


def decrypt(key: bytes, nonce: bytes, hidden: bytes, bound: bytes) -> bytes | None:
    """None for anything but what `encrypt` gave for the same key, nonce and `bound`."""
    try:
        return AESGCM(key).decrypt(nonce, hidden, bound)
    except InvalidTag:
        return None
