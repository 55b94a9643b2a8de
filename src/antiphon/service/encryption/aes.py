"""AES-256-GCM (NIST SP 800-38D). A separate module that is imported on demand: the library costs 10 ms and 8 MB."""

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM


def encrypt(key: bytes, nonce: bytes, plaintext: bytes, associated_data: bytes) -> bytes:
    """Encrypt. `associated_data` is authenticated but not encrypted."""
    return AESGCM(key).encrypt(nonce, plaintext, associated_data)


def decrypt(key: bytes, nonce: bytes, ciphertext: bytes, associated_data: bytes) -> bytes | None:
    """Decrypt; None unless `encrypt` returned this ciphertext for the same key, nonce and associated data."""
    try:
        return AESGCM(key).decrypt(nonce, ciphertext, associated_data)
    except InvalidTag:
        return None
