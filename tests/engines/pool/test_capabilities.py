"""What several engines can do as one."""

import pytest

from antiphon.engines.base import Standing
from antiphon.errors import Unavailable
from tests.engines.pool.members import Part, ask, pooled, seats, work

pytestmark = pytest.mark.anyio


async def test_what_all_can_do_is_what_can_be_asked_for() -> None:
    one = Part(
        "a",
        honours=frozenset({"top_k", "stop"}),
        lacks={"min_p": "It has no such field."},
        context=100,
        does=frozenset({"generate"}),
    )
    two = Part("b", honours=frozenset({"stop", "min_p"}), does=frozenset({"generate", "embed"}), context=50)
    three = Part("c", honours=frozenset({"stop", "top_k", "min_p"}), counts=False, context=None, version="3")
    async with pooled(one, two, three) as pool:
        able = await pool.capabilities("m")
        assert able.honours == {"stop"}
        assert able.lacks["min_p"] == "It has no such field."
        assert able.lacks["top_k"] == "Not every engine that serves this model has it."
        assert able.does == {"generate"}
        assert (able.context, able.counts, able.version) == (50, False, "3")


async def test_one_by_itself_can_do_what_it_can() -> None:
    part = Part("a", honours=frozenset({"stop"}), context=100)
    async with pooled(part, bound=7) as pool:
        able = await pool.capabilities("m")
        assert (able.honours, able.context, able.slots) == (frozenset({"stop"}), 100, 7)


async def test_who_is_not_well_is_not_counted_unless_nobody_is() -> None:
    one, two = Part("a", honours=frozenset({"stop"})), Part("b", honours=frozenset({"stop", "top_k"}))
    async with pooled(one, two, bound=10) as pool:
        assert (await pool.capabilities("m")).slots == 20
        one.up = False
        able = await pool.capabilities("m")
        assert (able.honours, able.slots) == (frozenset({"stop", "top_k"}), 10)
        two.up = False
        able = await pool.capabilities("m")
        assert (able.honours, able.slots) == (frozenset({"stop"}), 20), (
            "so that who waits is told soon that nobody is there"
        )


async def test_slots_are_those_of_all_each_at_most_its_bound() -> None:
    async with pooled(Part("a", slots=4), Part("b", slots=100), Part("c"), bound=8) as pool:
        assert (await pool.capabilities("m")).slots == 4 + 8 + 8
    async with pooled(Part("a", slots=4), Part("b")) as pool:
        assert (await pool.capabilities("m")).slots is None


async def test_models_of_the_same_engines_share_the_slots() -> None:
    async with pooled(Part("a", "x", "y"), Part("b", "x", "y", "z"), bound=4) as pool:
        lanes = [(await pool.capabilities(model)).lane for model in ("x", "y", "z")]
        assert lanes[0] == lanes[1] != lanes[2]
    async with pooled(Part("a", "x", "y", slots=2)) as pool:
        assert {(await pool.capabilities(model)).lane for model in ("x", "y")} == {None}, "it has some for each"


async def test_the_level_is_that_of_most_and_the_others_get_no_work() -> None:
    chat, text, other = Part("a"), Part("b", level="text"), Part("c", level="text")
    async with pooled(chat, text) as pool:
        assert (await pool.capabilities("m")).prompt == "chat", "if as many are of each"
        for number in range(20):
            assert (await ask(pool, work(f"{number}", level="chat"))).error is None
        assert (chat.requests, text.requests) == (20, 0)
        chat.up = False
        assert (await pool.capabilities("m")).prompt == "text"
        chat.up = True
    async with pooled(chat, text, other) as pool:
        able = await pool.capabilities("m")
        assert (able.prompt, able.template is not None) == ("text", True)


async def test_a_work_of_one_level_never_moves_to_another() -> None:
    chat, text = Part("a"), Part("b", level="text")
    async with pooled(chat, text) as pool:
        chat.fails(Unavailable("It cannot be reached.", retry_after=1.0))
        assert isinstance((await ask(pool, work(level="chat"))).error, Unavailable)
        assert text.requests == 0


async def test_what_is_counted_is_counted_at_that_level_too() -> None:
    chat, text = Part("a"), Part("b", level="text")
    async with pooled(chat, text) as pool:
        for _ in range(10):
            assert await pool.count("m", work().prompt)
        assert [member.failures for member in pool.members()] == [0, 0]


async def test_who_is_drained_can_do_nothing_but_is_still_known() -> None:
    part = Part("a")
    async with pooled(part, drain=True) as pool:
        assert pool.serves("m")
        assert not pool.healthy()
        with pytest.raises(Unavailable):
            await pool.capabilities("m")
        await pool.renew(seats(part))
        assert (await pool.capabilities("m")).honours


async def test_what_they_can_do_is_the_same_object_until_one_of_them_can_do_something_else() -> None:
    one, two = Part("a", context=100), Part("b", context=200)
    async with pooled(one, two) as pool:
        able = await pool.capabilities("m")
        assert await pool.capabilities("m") is able
        one._changes = {"context": 50}
        changed = await pool.capabilities("m")
        assert changed.context == 50
        two.up = False
        assert (await pool.capabilities("m")).context == 50
        two.up = True
        await pool.renew(seats(two))
        assert (await pool.capabilities("m")).context == 200


async def test_what_a_single_engine_says_stands_until_it_says_something_else_or_there_are_others() -> None:
    said = Standing()
    part = Part("a", standing=said)
    async with pooled(part) as pool:
        able = await pool.capabilities("m")
        assert able.standing.stands
        await pool.renew(seats(part, Part("b")))
        assert not able.standing.stands
        assert not (await pool.capabilities("m")).standing.stands, "either may say something at any time"
        await pool.renew(seats(part))
        able = await pool.capabilities("m")
        assert able.standing.stands
        said.fall()
        assert not able.standing.stands
