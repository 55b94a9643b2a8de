import asyncio
from typing import Any

import pytest
from msgspec.structs import replace

from antiphon.engines.base import Capabilities, Model
from antiphon.engines.fake import FakeEngine
from antiphon.errors import Busy, ModelNotFound, Unavailable
from antiphon.service.model_io.models import Models, Naming, OutputTokens


class TwoModels(FakeEngine):
    up = True

    def models(self) -> list[Model]:
        return [Model(id="one", created=1), Model(id="two", created=2)]

    def serves(self, model: str) -> bool:
        return model in ("one", "two")

    def healthy(self) -> bool:
        return self.up


def models(*aliases: str, accept_any: bool = False) -> Models:
    return Models([TwoModels()], aliases, accept_any, queue=1)


def test_a_model_is_found_by_its_own_name() -> None:
    served = models().find("two")
    assert (served.name, served.model) == ("two", "two")


def test_an_alias_is_the_first_model_and_is_echoed_as_the_client_said_it() -> None:
    served = models("gpt-4o").find("gpt-4o")
    assert (served.name, served.model) == ("gpt-4o", "one")


def test_aliases_are_listed_in_place_of_the_first_model() -> None:
    assert [model.id for model in models("a", "b").models()] == ["a", "b", "two"]


@pytest.mark.shows("H.16")
def test_an_unknown_model_is_refused_unless_any_is_accepted() -> None:
    with pytest.raises(ModelNotFound, match=r"'three'.*one, two"):
        models().find("three")
    assert models(accept_any=True).find("three").model == "one"


def test_one_model_can_be_asked_for_by_name() -> None:
    assert models().model("two").created == 2
    with pytest.raises(ModelNotFound):
        models().model("three")


def test_an_unhealthy_engine_is_a_reason_not_to_be_ready() -> None:
    engine = TwoModels()
    directory = Models([engine], (), False, 1)
    assert directory.ready() == []
    engine.up = False
    assert directory.ready() == ["The fake engine is not ready."]


class Roomy(TwoModels):
    """One that has so many slots for all of its models together."""

    slots = 1

    async def capabilities(self, model: str) -> Capabilities:
        return replace(await super().capabilities(model), slots=self.slots, lane="all")


def named(engine: TwoModels | None = None, **naming: Any) -> Models:
    return Models([engine or TwoModels()], naming=Naming(**naming), queue=1)


@pytest.mark.shows("H.16")
def test_an_alias_of_any_model_is_found_and_listed() -> None:
    directory = named(aliases={"fast": "two", "lost": "three"})
    served = directory.find("fast")
    assert (served.name, served.model) == ("fast", "two")
    assert [model.id for model in directory.models()] == ["one", "two", "fast"]
    assert directory.model("fast").created == 2
    with pytest.raises(ModelNotFound, match=r"'lost' stands for 'three', which .* one, two, fast"):
        directory.find("lost")


@pytest.mark.anyio
async def test_an_alias_in_the_place_of_a_model_hides_that_and_nothing_else() -> None:
    directory = named(aliases={"one": "three"})
    assert [model.id for model in directory.models()] == ["two"]
    assert [served.name for served, _ in await directory.able()] == ["two"]
    with pytest.raises(ModelNotFound, match="'one' stands for 'three'"):
        directory.find("one")


def test_an_alias_in_the_place_of_a_model_is_listed_as_what_it_stands_for() -> None:
    directory = named(aliases={"one": "two"})
    assert [(model.id, model.created) for model in directory.models()] == [("two", 2), ("one", 2)]
    assert directory.find("one").model == "two"


class NotMet(TwoModels):
    """Of several, where the first has not told yet which models it has."""

    def first(self) -> Model | None:
        return None


def test_the_names_of_the_first_model_are_nobody_elses_while_its_engine_is_not_there() -> None:
    directory = named(NotMet(), served=("mine",), accept_any=True)
    assert [model.id for model in directory.models()] == ["one", "two"]
    assert directory.find("two").model == "two"
    for name in ("mine", "whatever"):
        with pytest.raises(Unavailable):
            directory.find(name)


def test_an_alias_may_stand_for_the_name_under_which_the_first_model_is_served() -> None:
    served = named(served=("mine",), aliases={"gpt": "mine"}).find("gpt")
    assert (served.name, served.model) == ("gpt", "one")


@pytest.mark.shows("C1.1")
def test_a_model_has_a_room_of_its_own_by_its_name_or_by_its_alias() -> None:
    rooms = {"two": OutputTokens(most=5), "fast": OutputTokens(most=3)}
    directory = named(aliases={"fast": "two", "other": "two"}, rooms=rooms, room=OutputTokens(most=9))
    found = [directory.find(name).room for name in ("one", "two", "other", "fast")]
    assert [room and room.most for room in found] == [9, 5, 5, 3]
    assert models().find("one").room is None


def test_names_and_rooms_may_change_and_those_who_wait_stay() -> None:
    directory = named(aliases={"fast": "two"})
    directory.renew(Naming(aliases={"slow": "one"}, rooms={"one": OutputTokens(most=1)}), queue=9)
    assert [model.id for model in directory.models()] == ["one", "two", "slow"]
    assert directory.find("slow").room == OutputTokens(most=1)
    with pytest.raises(ModelNotFound):
        directory.find("fast")


@pytest.mark.anyio
async def test_models_that_share_slots_share_a_queue() -> None:
    directory = named(Roomy())
    one, two = directory.find("one"), directory.find("two")
    able = await one.capabilities()
    running = directory.admit(one, able)
    assert running is not None
    waiting = directory.admit(two, await two.capabilities())
    assert directory.waiting() == 1
    with pytest.raises(Busy):
        directory.admit(one, able)
    running.leave()
    assert directory.waiting() == 0
    assert waiting is not None


@pytest.mark.anyio
async def test_who_waits_comes_in_when_engines_come_back_though_nobody_else_asks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("antiphon.service.model_io.models._LOOK", 0.01)
    engine = Roomy()
    directory = named(engine)
    served = directory.find("one")
    able = await served.capabilities()
    directory.admit(served, able)
    waiting = directory.admit(served, able, tenant="b")
    assert waiting is not None
    attending = asyncio.ensure_future(directory.attend())
    engine.slots = 2
    async with asyncio.timeout(30):
        await waiting.ready()
    attending.cancel()
    await asyncio.wait([attending])
    assert directory.waiting() == 0


@pytest.mark.anyio
async def test_a_queue_has_as_many_slots_as_there_are_now() -> None:
    engine = Roomy()
    directory = named(engine)
    served = directory.find("one")
    tickets = [directory.admit(served, await served.capabilities()) for _ in range(2)]
    assert directory.waiting() == 1
    engine.slots = 3
    tickets.append(directory.admit(served, await served.capabilities()))
    assert directory.waiting() == 0, "who waited has its turn as well as who came last"
    engine.slots = 1
    tickets.append(directory.admit(served, await served.capabilities()))
    assert directory.waiting() == 1
    for ticket in tickets:
        assert ticket is not None
        ticket.leave()


@pytest.mark.anyio
async def test_lanes_that_nobody_is_in_are_forgotten() -> None:
    directory = named(Roomy())
    served = directory.find("one")
    able = await served.capabilities()
    for number in range(100):
        ticket = directory.admit(served, replace(able, lane=f"{number}"))
        assert ticket is not None
        ticket.leave()
    assert len(directory._lanes) <= 2


@pytest.mark.anyio
async def test_where_there_is_one_model_a_full_queue_turns_everybody_away_but_those_with_a_share() -> None:
    engine = FakeEngine()
    able = replace(await engine.capabilities("fake"), slots=1)
    alone = Models([engine], queue=2)
    assert alone.turned_away("loud") is None
    for _ in range(3):
        assert alone.turned_away("loud") is None
        alone.admit(alone.find("fake"), able, tenant="loud")
    assert alone.turned_away("loud") is not None
    assert alone.turned_away("quiet") is None
    assert alone.crowding() == 1.0


@pytest.mark.anyio
async def test_who_is_patient_makes_no_crowd() -> None:
    engine = FakeEngine()
    able = replace(await engine.capabilities("fake"), slots=1)
    alone = Models([engine], queue=2)
    tickets = [alone.admit(alone.find("fake"), able, patient=True, tenant="") for _ in range(4)]
    waits = [asyncio.ensure_future(ticket.ready()) for ticket in tickets if ticket is not None]
    await asyncio.sleep(0)
    assert (alone.waiting(), alone.crowding()) == (3, 0.0)
    for wait in waits:
        wait.cancel()
    await asyncio.wait(waits)


@pytest.mark.anyio
async def test_where_there_are_several_nobody_is_turned_away_before_the_model_is_known() -> None:
    found = models()
    able = replace(await TwoModels().capabilities("one"), slots=1)
    for _ in range(2):
        found.admit(found.find("one"), able)
    assert found.turned_away("") is None
