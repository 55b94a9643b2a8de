"""The merged capabilities of several engines.

Covers `engines/pool/members.py`.
"""

import pytest

from antiphon.errors import Unavailable
from tests.engines.pool.members import FakeMember, make_request, make_specs, open_pool, run_generation

pytestmark = pytest.mark.anyio


async def test_the_pool_supports_what_all_members_support() -> None:
    one = FakeMember(
        "a",
        supported_fields=frozenset({"top_k", "stop"}),
        unsupported_reasons={"min_p": "It has no such field."},
        context=100,
        tasks=frozenset({"generate"}),
    )
    two = FakeMember(
        "b", supported_fields=frozenset({"stop", "min_p"}), tasks=frozenset({"generate", "embed"}), context=50
    )
    three = FakeMember(
        "c", supported_fields=frozenset({"stop", "top_k", "min_p"}), can_count_tokens=False, context=None, version="3"
    )
    async with open_pool(one, two, three) as pool:
        capabilities = await pool.capabilities("m")
        assert capabilities.supported_fields == {"stop"}
        assert capabilities.unsupported_reasons["min_p"] == "It has no such field."
        assert capabilities.unsupported_reasons["top_k"] == "Not every engine that serves this model supports it."
        assert capabilities.tasks == {"generate"}
        assert (capabilities.context, capabilities.can_count_tokens, capabilities.version) == (50, False, "3")


@pytest.mark.parametrize(("others", "merged"), [(True, True), (False, None), (None, None)])
async def test_members_that_differ_about_the_effort_leave_it_unknown(others: bool | None, merged: bool | None) -> None:
    async with open_pool(FakeMember("a", takes_effort=True), FakeMember("b", takes_effort=others)) as pool:
        capabilities = await pool.capabilities("m")
        assert (capabilities.takes_effort, capabilities.replicas) == (merged, 2)


async def test_a_single_member_keeps_its_capabilities() -> None:
    member = FakeMember("a", supported_fields=frozenset({"stop"}), context=100)
    async with open_pool(member, max_running=7) as pool:
        capabilities = await pool.capabilities("m")
        assert (capabilities.supported_fields, capabilities.context, capabilities.slots) == (
            frozenset({"stop"}),
            100,
            7,
        )


async def test_unhealthy_members_are_ignored_unless_all_are_unhealthy() -> None:
    one, two = (
        FakeMember("a", supported_fields=frozenset({"stop"})),
        FakeMember("b", supported_fields=frozenset({"stop", "top_k"})),
    )
    async with open_pool(one, two, max_running=10) as pool:
        assert (await pool.capabilities("m")).slots == 20
        one.up = False
        capabilities = await pool.capabilities("m")
        assert (capabilities.supported_fields, capabilities.slots) == (frozenset({"stop", "top_k"}), 10)
        two.up = False
        capabilities = await pool.capabilities("m")
        assert (capabilities.supported_fields, capabilities.slots) == (frozenset({"stop"}), 20), (
            "so that waiting requests fail soon"
        )


async def test_slots_are_the_sum_of_the_limited_slots_of_all_members() -> None:
    async with open_pool(FakeMember("a", slots=4), FakeMember("b", slots=100), FakeMember("c"), max_running=8) as pool:
        assert (await pool.capabilities("m")).slots == 4 + 8 + 8
    async with open_pool(FakeMember("a", slots=4), FakeMember("b")) as pool:
        assert (await pool.capabilities("m")).slots is None


async def test_models_of_the_same_engines_share_the_slots() -> None:
    async with open_pool(FakeMember("a", "x", "y"), FakeMember("b", "x", "y", "z"), max_running=4) as pool:
        lanes = [(await pool.capabilities(model)).lane for model in ("x", "y", "z")]
        assert lanes[0] == lanes[1] != lanes[2]
    async with open_pool(FakeMember("a", "x", "y", slots=2)) as pool:
        assert {(await pool.capabilities(model)).lane for model in ("x", "y")} == {None}, (
            "the engine has slots per model"
        )


async def test_the_majority_decides_the_level_and_other_members_get_no_requests() -> None:
    chat, text, other = FakeMember("a"), FakeMember("b", level="text"), FakeMember("c", level="text")
    async with open_pool(chat, text) as pool:
        assert (await pool.capabilities("m")).level == "chat", "chat wins a tie"
        for number in range(20):
            assert (await run_generation(pool, make_request(f"{number}", level="chat"))).error is None
        assert (chat.requests, text.requests) == (20, 0)
        chat.up = False
        assert (await pool.capabilities("m")).level == "text"
        chat.up = True
    async with open_pool(chat, text, other) as pool:
        capabilities = await pool.capabilities("m")
        assert (capabilities.level, capabilities.template is not None) == ("text", True)


async def test_a_request_never_moves_to_a_member_of_another_level() -> None:
    chat, text = FakeMember("a"), FakeMember("b", level="text")
    async with open_pool(chat, text) as pool:
        chat.fails(Unavailable("It cannot be reached.", retry_after=1.0))
        assert isinstance((await run_generation(pool, make_request(level="chat"))).error, Unavailable)
        assert text.requests == 0


async def test_tokens_are_counted_at_the_level_of_the_pool() -> None:
    chat, text = FakeMember("a"), FakeMember("b", level="text")
    async with open_pool(chat, text) as pool:
        for _ in range(10):
            assert await pool.count_tokens("m", make_request().prompt)
        assert [member.failures for member in pool.members()] == [0, 0]


async def test_a_drained_member_is_unavailable_but_its_model_stays_listed() -> None:
    member = FakeMember("a")
    async with open_pool(member, drain=True) as pool:
        assert pool.serves("m")
        assert not pool.is_healthy()
        with pytest.raises(Unavailable):
            await pool.capabilities("m")
        await pool.update_members(make_specs(member))
        assert (await pool.capabilities("m")).supported_fields


async def test_merged_capabilities_are_cached_until_a_member_changes() -> None:
    one, two = FakeMember("a", context=100), FakeMember("b", context=200)
    async with open_pool(one, two) as pool:
        capabilities = await pool.capabilities("m")
        assert await pool.capabilities("m") is capabilities
        one._overrides = {"context": 50}
        changed = await pool.capabilities("m")
        assert changed.context == 50
        two.up = False
        assert (await pool.capabilities("m")).context == 50
        two.up = True
        await pool.update_members(make_specs(two))
        assert (await pool.capabilities("m")).context == 200
