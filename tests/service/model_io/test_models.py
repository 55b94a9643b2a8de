"""The model directory: names, aliases and output limits of models, their queues, and early refusal.

Covers `service/model_io/adapter.py`, `service/model_io/harmony.py` and `service/model_io/served_model.py`.
"""

import asyncio
from typing import Any

import pytest
from msgspec.structs import replace

from antiphon.engines.base import Capabilities, Model
from antiphon.engines.fake import FakeEngine
from antiphon.errors import Busy, ModelNotFound, Unavailable
from antiphon.service.model_io.models import ModelNaming, Models
from antiphon.service.model_io.served_model import OutputTokenLimits


class TwoModelEngine(FakeEngine):
    up = True

    def models(self) -> list[Model]:
        return [Model(id="one", created=1), Model(id="two", created=2)]

    def serves(self, model: str) -> bool:
        return model in ("one", "two")

    def is_healthy(self) -> bool:
        return self.up


def make_models(*aliases: str, accept_any: bool = False) -> Models:
    return Models(TwoModelEngine(), ModelNaming(served=aliases, accept_any=accept_any), queue=1)


def test_a_model_is_found_by_its_own_name() -> None:
    served = make_models().find("two")
    assert (served.name, served.model) == ("two", "two")


def test_a_served_name_means_the_first_model_and_is_echoed_as_sent() -> None:
    served = make_models("gpt-4o").find("gpt-4o")
    assert (served.name, served.model) == ("gpt-4o", "one")


def test_served_names_replace_the_first_model_in_the_list() -> None:
    assert [model.id for model in make_models("a", "b").models()] == ["a", "b", "two"]


@pytest.mark.shows("H.16")
def test_an_unknown_model_is_rejected_unless_any_name_is_accepted() -> None:
    with pytest.raises(ModelNotFound, match=r"'three'.*one, two"):
        make_models().find("three")
    assert make_models(accept_any=True).find("three").model == "one"


def test_a_single_model_is_retrieved_by_name() -> None:
    assert make_models().model("two").created == 2
    with pytest.raises(ModelNotFound):
        make_models().model("three")


def test_an_unhealthy_engine_makes_the_server_unready() -> None:
    engine = TwoModelEngine()
    directory = Models(engine, queue=1)
    assert directory.ready() == []
    engine.up = False
    assert directory.ready() == ["The fake engine is not ready."]


class SlottedEngine(TwoModelEngine):
    """An engine whose models share a number of slots."""

    slots = 1

    async def capabilities(self, model: str) -> Capabilities:
        return replace(await super().capabilities(model), slots=self.slots, lane="all")


def make_named_models(engine: TwoModelEngine | None = None, **naming: Any) -> Models:
    return Models(engine or TwoModelEngine(), naming=ModelNaming(**naming), queue=1)


@pytest.mark.shows("H.16")
def test_an_alias_of_any_model_is_found_and_listed() -> None:
    directory = make_named_models(aliases={"fast": "two", "lost": "three"})
    served = directory.find("fast")
    assert (served.name, served.model) == ("fast", "two")
    assert [model.id for model in directory.models()] == ["one", "two", "fast"]
    assert directory.model("fast").created == 2
    with pytest.raises(ModelNotFound, match=r"'lost' stands for 'three', which .* one, two, fast"):
        directory.find("lost")


@pytest.mark.anyio
async def test_an_alias_with_the_name_of_a_model_hides_only_that_model() -> None:
    directory = make_named_models(aliases={"one": "three"})
    assert [model.id for model in directory.models()] == ["two"]
    assert [served.name for served, _ in await directory.survey()] == ["two"]
    with pytest.raises(ModelNotFound, match="'one' stands for 'three'"):
        directory.find("one")


def test_an_alias_with_the_name_of_a_model_is_listed_as_its_target() -> None:
    directory = make_named_models(aliases={"one": "two"})
    assert [(model.id, model.created) for model in directory.models()] == [("two", 2), ("one", 2)]
    assert directory.find("one").model == "two"


class UnknownFirstEngine(TwoModelEngine):
    """An engine of several whose first member has not reported its models yet."""

    def default_model(self) -> Model | None:
        return None


def test_names_of_the_first_model_are_unavailable_while_its_engine_is_absent() -> None:
    directory = make_named_models(UnknownFirstEngine(), served=("mine",), accept_any=True)
    assert [model.id for model in directory.models()] == ["one", "two"]
    assert directory.find("two").model == "two"
    for name in ("mine", "whatever"):
        with pytest.raises(Unavailable):
            directory.find(name)


def test_an_alias_may_point_to_a_served_name() -> None:
    served = make_named_models(served=("mine",), aliases={"gpt": "mine"}).find("gpt")
    assert (served.name, served.model) == ("gpt", "one")


@pytest.mark.shows("C1.1")
def test_output_limits_apply_by_model_name_or_alias() -> None:
    limits = {"two": OutputTokenLimits(maximum=5), "fast": OutputTokenLimits(maximum=3)}
    directory = make_named_models(
        aliases={"fast": "two", "other": "two"}, limits=limits, default_limits=OutputTokenLimits(maximum=9)
    )
    found = [directory.find(name).output_limits for name in ("one", "two", "other", "fast")]
    assert [room and room.maximum for room in found] == [9, 5, 5, 3]
    assert make_models().find("one").output_limits is None


def test_names_and_output_limits_can_be_reconfigured() -> None:
    directory = make_named_models(aliases={"fast": "two"})
    directory.configure(ModelNaming(aliases={"slow": "one"}, limits={"one": OutputTokenLimits(maximum=1)}), queue=9)
    assert [model.id for model in directory.models()] == ["one", "two", "slow"]
    assert directory.find("slow").output_limits == OutputTokenLimits(maximum=1)
    with pytest.raises(ModelNotFound):
        directory.find("fast")


@pytest.mark.anyio
async def test_models_that_share_slots_share_a_queue() -> None:
    directory = make_named_models(SlottedEngine())
    one, two = directory.find("one"), directory.find("two")
    capabilities = await one.capabilities()
    running = directory.admit(one, capabilities)
    assert running is not None
    waiting = directory.admit(two, await two.capabilities())
    assert directory.count_waiting() == 1
    with pytest.raises(Busy):
        directory.admit(one, capabilities)
    running.leave()
    assert directory.count_waiting() == 0
    assert waiting is not None


@pytest.mark.anyio
async def test_a_waiting_request_is_admitted_when_slots_return_without_new_requests(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("antiphon.service.model_io.models._POLL_SECONDS", 0.01)
    engine = SlottedEngine()
    directory = make_named_models(engine)
    served = directory.find("one")
    capabilities = await served.capabilities()
    directory.admit(served, capabilities)
    waiting = directory.admit(served, capabilities, tenant="b")
    assert waiting is not None
    polling = asyncio.ensure_future(directory.run_forever())
    engine.slots = 2
    async with asyncio.timeout(30):
        await waiting.wait_turn()
    polling.cancel()
    await asyncio.wait([polling])
    assert directory.count_waiting() == 0


@pytest.mark.anyio
async def test_a_queue_follows_the_current_number_of_slots() -> None:
    engine = SlottedEngine()
    directory = make_named_models(engine)
    served = directory.find("one")
    tickets = [directory.admit(served, await served.capabilities()) for _ in range(2)]
    assert directory.count_waiting() == 1
    engine.slots = 3
    tickets.append(directory.admit(served, await served.capabilities()))
    assert directory.count_waiting() == 0, "both the waiting and the new request are admitted"
    engine.slots = 1
    tickets.append(directory.admit(served, await served.capabilities()))
    assert directory.count_waiting() == 1
    for ticket in tickets:
        assert ticket is not None
        ticket.leave()


@pytest.mark.anyio
async def test_empty_lanes_are_removed() -> None:
    directory = make_named_models(SlottedEngine())
    served = directory.find("one")
    capabilities = await served.capabilities()
    for number in range(100):
        ticket = directory.admit(served, replace(capabilities, lane=f"{number}"))
        assert ticket is not None
        ticket.leave()
    assert len(directory._lanes) <= 2


@pytest.mark.anyio
async def test_a_full_queue_of_a_single_model_refuses_early_except_tenants_with_a_share() -> None:
    engine = FakeEngine()
    capabilities = replace(await engine.capabilities("fake"), slots=1)
    directory = Models(engine, queue=2)
    assert directory.find_refusal("loud") is None
    for _ in range(3):
        assert directory.find_refusal("loud") is None
        directory.admit(directory.find("fake"), capabilities, tenant="loud")
    assert directory.find_refusal("loud") is not None
    assert directory.find_refusal("quiet") is None
    assert directory.get_queue_load() == 1.0


@pytest.mark.anyio
async def test_patient_requests_do_not_count_as_queue_load() -> None:
    engine = FakeEngine()
    capabilities = replace(await engine.capabilities("fake"), slots=1)
    directory = Models(engine, queue=2)
    tickets = [directory.admit(directory.find("fake"), capabilities, patient=True, tenant="") for _ in range(4)]
    ready_tasks = [asyncio.ensure_future(ticket.wait_turn()) for ticket in tickets if ticket is not None]
    await asyncio.sleep(0)
    assert (directory.count_waiting(), directory.get_queue_load()) == (3, 0.0)
    for wait in ready_tasks:
        wait.cancel()
    await asyncio.wait(ready_tasks)


@pytest.mark.anyio
async def test_with_several_models_no_request_is_refused_before_its_model_is_known() -> None:
    directory = make_models()
    capabilities = replace(await TwoModelEngine().capabilities("one"), slots=1)
    for _ in range(2):
        directory.admit(directory.find("one"), capabilities)
    assert directory.find_refusal("") is None
