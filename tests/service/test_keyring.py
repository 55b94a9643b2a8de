"""The keyring: encrypted reasoning decrypts to the original, and altered, foreign or other tenants' content is
rejected.
"""

import sys
from subprocess import run

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.core.encrypted_reasoning import VERSION_PREFIX
from antiphon.errors import InvalidEncryptedContent
from antiphon.protocol.types.items import InputItem, Message, Reasoning
from antiphon.protocol.types.parts import InputText
from antiphon.service.keyring import FOREIGN, KEY_BYTES, DecryptionError, Keyring, new_key

pytestmark = pytest.mark.anyio

KEY, OLD_KEY = bytes(range(KEY_BYTES)), bytes(KEY_BYTES)
ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/="


def can_decrypt(ring: Keyring, encrypted: str, tenant: str = "t") -> bool:
    try:
        ring.decrypt(tenant, encrypted)
    except DecryptionError:
        return False
    return True


@given(thought=st.text(), tenant=st.text())
def test_encrypted_text_decrypts_to_the_original(thought: str, tenant: str) -> None:
    ring = Keyring([KEY])
    encrypted = ring.encrypt(tenant, thought)
    assert encrypted.isascii()
    assert encrypted.startswith(VERSION_PREFIX)
    assert ring.decrypt(tenant, encrypted) == thought


def test_a_lone_surrogate_survives_encryption() -> None:
    ring = Keyring([KEY])
    assert ring.decrypt("t", ring.encrypt("t", "\ud800 hm")) == "\ud800 hm"


@pytest.mark.shows("A.40")
def test_any_flipped_bit_is_rejected() -> None:
    ring = Keyring([KEY])
    encrypted = ring.encrypt("t", "The user wants a short answer.").encode()
    for position in range(len(encrypted)):
        for bit in range(8):
            changed = bytes([*encrypted[:position], encrypted[position] ^ (1 << bit), *encrypted[position + 1 :]])
            assert not can_decrypt(ring, changed.decode("latin-1")), (position, bit)


@pytest.mark.shows("A.40")
def test_any_changed_removed_or_added_character_is_rejected() -> None:
    ring = Keyring([KEY])
    for length in range(4):  # each length leaves different unused bits at the end of the base64
        encrypted = ring.encrypt("t", "x" * length)
        for position in range(len(VERSION_PREFIX), len(encrypted)):
            assert not can_decrypt(ring, encrypted[:position] + encrypted[position + 1 :])
            assert not can_decrypt(ring, encrypted[:position])
            others = [letter for letter in ALPHABET if letter != encrypted[position]]
            assert not any(
                can_decrypt(ring, encrypted[:position] + letter + encrypted[position + 1 :]) for letter in others
            )
        assert not any(
            can_decrypt(ring, encrypted + more) for more in ("=", "==", "A", "AAAA", "\n", " ", "\0", "é", "-", "_")
        )
        assert not any(can_decrypt(ring, more + encrypted) for more in (" ", "\n", VERSION_PREFIX))


def test_the_ciphertext_hides_the_text_and_differs_each_time() -> None:
    ring = Keyring([KEY])
    assert len({ring.encrypt("t", "the same") for _ in range(100)}) == 100
    assert "the same" not in ring.encrypt("t", "the same")


@pytest.mark.shows("A.39")
def test_a_tenant_cannot_decrypt_content_of_another_tenant() -> None:
    ring = Keyring([KEY])
    encrypted = ring.encrypt("one", "hm")
    assert can_decrypt(ring, encrypted, "one")
    assert not any(can_decrypt(ring, encrypted, tenant) for tenant in ("other", "", "on", "one\0", "onee", "reasoning"))


@pytest.mark.shows("A.39")
def test_a_new_key_encrypts_and_the_old_key_still_decrypts() -> None:
    before, both, after = Keyring([OLD_KEY]), Keyring([KEY, OLD_KEY]), Keyring([KEY])
    old, new = before.encrypt("t", "then"), both.encrypt("t", "now")
    assert (both.decrypt("t", old), both.decrypt("t", new), after.decrypt("t", new)) == ("then", "now", "now")
    with pytest.raises(DecryptionError, match="a key that this server does not have"):
        after.decrypt("t", old)
    with pytest.raises(DecryptionError, match="a key that this server does not have"):
        before.decrypt("t", new)


def test_an_added_key_comes_last() -> None:
    ring = Keyring()
    assert not ring
    ring.add(KEY)
    ring.add(OLD_KEY)
    ring.add(KEY)
    assert len(ring) == 2
    assert Keyring([KEY]).decrypt("t", ring.encrypt("t", "hm")) == "hm"


def test_new_keys_are_unique_and_have_the_full_length() -> None:
    keys = {new_key() for _ in range(100)}
    assert len(keys) == 100
    assert {len(key) for key in keys} == {KEY_BYTES}


@pytest.mark.parametrize(
    "encrypted",
    [
        VERSION_PREFIX,
        VERSION_PREFIX + "AAAA",
        VERSION_PREFIX + "A" * 71,
        "antiphon-sealed-2.AAAA",
        VERSION_PREFIX + "ü" * 90,
        "",
    ],
)
def test_content_that_was_never_encrypted_is_rejected(encrypted: str) -> None:
    assert not can_decrypt(Keyring([KEY]), encrypted)


def make_reasoning(encrypted: str) -> Reasoning:
    return Reasoning(encrypted_content=encrypted)


async def test_items_without_encrypted_content_are_returned_unchanged() -> None:
    items: list[InputItem] = [Message(role="user", content=[InputText(text="hi")]), Reasoning(), make_reasoning("")]
    assert (await Keyring([KEY]).decrypt_items("t", items)) == (items, [])
    assert (await Keyring([KEY]).decrypt_items("t", items))[0] is items


@pytest.mark.shows("A.40")
async def test_own_content_that_cannot_be_decrypted_is_rejected_with_its_position() -> None:
    ring = Keyring([KEY])
    good = ring.encrypt("t", "hm")
    for bad in (
        good[:-1],
        good[:-2] + "xx",
        ring.encrypt("other", "hm"),
        Keyring([OLD_KEY]).encrypt("t", "hm"),
        VERSION_PREFIX,
    ):
        with pytest.raises(InvalidEncryptedContent) as refused:
            await ring.decrypt_items("t", [make_reasoning(good), make_reasoning(bad)])
        assert (refused.value.status, refused.value.code) == (400, "invalid_encrypted_content")
        assert refused.value.param == "input[1].encrypted_content"
        assert bad not in refused.value.message or bad == VERSION_PREFIX


async def test_foreign_encrypted_content_is_reported_once_and_left_unchanged() -> None:
    items: list[InputItem] = [make_reasoning("gAAAAAB"), make_reasoning("gAAAAAC")]
    assert await Keyring([KEY]).decrypt_items("t", items) == (items, [FOREIGN])


async def test_large_encrypted_content_is_decrypted() -> None:
    ring = Keyring([KEY])
    texts = [f"{number} " * 20_000 for number in range(10)]
    found, _ = await ring.decrypt_items("t", [make_reasoning(ring.encrypt("t", text)) for text in texts])
    assert [item.content[0].text for item in found if isinstance(item, Reasoning) and item.content] == texts


def test_a_server_that_encrypts_nothing_does_not_load_cryptography() -> None:
    code = "import sys, antiphon.wiring; sys.exit('cryptography' in sys.modules)"
    assert run([sys.executable, "-c", code], timeout=150, check=False).returncode == 0
