import pytest

from antiphon.engines.base import Model
from antiphon.engines.fake import FakeEngine
from antiphon.errors import ModelNotFound
from antiphon.service.models import Models


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
