"""Keys that seal and open: what comes back is what went out, and everything else is refused."""

import sys
from subprocess import run

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.core.encrypted_reasoning import FORM
from antiphon.errors import InvalidEncryptedContent
from antiphon.protocol.types.items import InputItem, InputText, Message, Reasoning
from antiphon.service.encryption.keyring import FOREIGN, KEY_BYTES, Keyring, Unsealable, new_key

pytestmark = pytest.mark.anyio

KEY, OLDER = bytes(range(KEY_BYTES)), bytes(KEY_BYTES)
ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/="


def opens(ring: Keyring, sealed: str, tenant: str = "t") -> bool:
    try:
        ring.open(tenant, sealed)
    except Unsealable:
        return False
    return True


@given(thought=st.text(), tenant=st.text())
def test_what_was_sealed_comes_back_to_the_letter(thought: str, tenant: str) -> None:
    ring = Keyring([KEY])
    sealed = ring.seal(tenant, thought)
    assert sealed.isascii()
    assert sealed.startswith(FORM)
    assert ring.open(tenant, sealed) == thought


def test_half_a_character_comes_back_too() -> None:
    ring = Keyring([KEY])
    assert ring.open("t", ring.seal("t", "\ud800 hm")) == "\ud800 hm"


@pytest.mark.shows("A.40")
def test_no_bit_of_it_can_be_changed() -> None:
    ring = Keyring([KEY])
    sealed = ring.seal("t", "The user wants a short answer.").encode()
    for place in range(len(sealed)):
        for bit in range(8):
            changed = bytes([*sealed[:place], sealed[place] ^ (1 << bit), *sealed[place + 1 :]])
            assert not opens(ring, changed.decode("latin-1")), (place, bit)


@pytest.mark.shows("A.40")
def test_no_letter_of_it_can_be_changed_left_out_or_added() -> None:
    ring = Keyring([KEY])
    for length in range(4):  # of which base64 leaves other bits at the end each time
        sealed = ring.seal("t", "x" * length)
        for place in range(len(FORM), len(sealed)):
            assert not opens(ring, sealed[:place] + sealed[place + 1 :])
            assert not opens(ring, sealed[:place])
            others = [letter for letter in ALPHABET if letter != sealed[place]]
            assert not any(opens(ring, sealed[:place] + letter + sealed[place + 1 :]) for letter in others)
        assert not any(opens(ring, sealed + more) for more in ("=", "==", "A", "AAAA", "\n", " ", "\0", "é", "-", "_"))
        assert not any(opens(ring, more + sealed) for more in (" ", "\n", FORM))


def test_it_says_nothing_of_the_thought_and_is_another_one_each_time() -> None:
    ring = Keyring([KEY])
    assert len({ring.seal("t", "the same") for _ in range(100)}) == 100
    assert "the same" not in ring.seal("t", "the same")


@pytest.mark.shows("A.39")
def test_one_tenant_cannot_use_what_was_sealed_for_another() -> None:
    ring = Keyring([KEY])
    sealed = ring.seal("one", "hm")
    assert opens(ring, sealed, "one")
    assert not any(opens(ring, sealed, tenant) for tenant in ("other", "", "on", "one\0", "onee", "reasoning"))


@pytest.mark.shows("A.39")
def test_a_new_key_is_put_in_front_and_the_old_one_still_opens() -> None:
    before, both, after = Keyring([OLDER]), Keyring([KEY, OLDER]), Keyring([KEY])
    old, new = before.seal("t", "then"), both.seal("t", "now")
    assert (both.open("t", old), both.open("t", new), after.open("t", new)) == ("then", "now", "now")
    with pytest.raises(Unsealable, match="a key that this server does not have"):
        after.open("t", old)
    with pytest.raises(Unsealable, match="a key that this server does not have"):
        before.open("t", new)


def test_a_key_that_is_added_comes_last() -> None:
    ring = Keyring()
    assert not ring
    ring.add(KEY)
    ring.add(OLDER)
    ring.add(KEY)
    assert len(ring) == 2
    assert Keyring([KEY]).open("t", ring.seal("t", "hm")) == "hm"


def test_new_keys_are_long_and_never_the_same() -> None:
    keys = {new_key() for _ in range(100)}
    assert len(keys) == 100
    assert {len(key) for key in keys} == {KEY_BYTES}


@pytest.mark.parametrize(
    "sealed", [FORM, FORM + "AAAA", FORM + "A" * 71, "antiphon-sealed-2.AAAA", FORM + "ü" * 90, ""]
)
def test_what_was_never_sealed_is_not_opened(sealed: str) -> None:
    assert not opens(Keyring([KEY]), sealed)


def reasoning(sealed: str) -> Reasoning:
    return Reasoning(encrypted_content=sealed)


async def test_items_without_anything_sealed_are_the_same_list() -> None:
    items: list[InputItem] = [Message(role="user", content=[InputText(text="hi")]), Reasoning(), reasoning("")]
    assert (await Keyring([KEY]).opened("t", items)) == (items, [])
    assert (await Keyring([KEY]).opened("t", items))[0] is items


@pytest.mark.shows("A.40")
async def test_what_is_ours_and_cannot_be_opened_is_refused_by_its_place() -> None:
    ring = Keyring([KEY])
    good = ring.seal("t", "hm")
    for bad in (good[:-1], good[:-2] + "xx", ring.seal("other", "hm"), Keyring([OLDER]).seal("t", "hm"), FORM):
        with pytest.raises(InvalidEncryptedContent) as refused:
            await ring.opened("t", [reasoning(good), reasoning(bad)])
        assert (refused.value.status, refused.value.code) == (400, "invalid_encrypted_content")
        assert refused.value.param == "input[1].encrypted_content"
        assert bad not in refused.value.message or bad == FORM


async def test_what_others_sealed_is_named_once_and_left_alone() -> None:
    items: list[InputItem] = [reasoning("gAAAAAB"), reasoning("gAAAAAC")]
    assert await Keyring([KEY]).opened("t", items) == (items, [FOREIGN])


async def test_much_of_it_is_opened_as_well_as_little() -> None:
    ring = Keyring([KEY])
    thoughts = [f"{number} " * 20_000 for number in range(10)]
    found, _ = await ring.opened("t", [reasoning(ring.seal("t", thought)) for thought in thoughts])
    assert [item.content[0].text for item in found if isinstance(item, Reasoning) and item.content] == thoughts


def test_a_server_that_seals_nothing_does_not_load_the_cipher() -> None:
    code = "import sys, antiphon.wiring; sys.exit('cryptography' in sys.modules)"
    assert run([sys.executable, "-c", code], timeout=150, check=False).returncode == 0
