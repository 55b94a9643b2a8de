"""Who does what: found by name, or by what it does where names do not matter; and let in within a time."""

import asyncio
from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from antiphon.engines.base import Capabilities, Model
from antiphon.engines.fake import FakeEngine, FakeSettings
from antiphon.errors import Busy, EngineFailed, ModelNotFound, NotFound, UnsupportedParameter
from antiphon.protocol.types.request import CreateResponse
from antiphon.service.engine_tasks import Doing
from antiphon.service.model_io.models import Models
from antiphon.service.planning.validation import refuse_unhonoured

pytestmark = pytest.mark.anyio


class Library(FakeEngine):
    """A model that generates, and one that embeds."""

    def models(self) -> Sequence[Model]:
        return [Model(id="chat", created=1), Model(id="vectors", created=1)]

    def serves(self, model: str) -> bool:
        return model in ("chat", "vectors")

    async def capabilities(self, model: str) -> Capabilities:
        able = await super().capabilities(model)
        return replace(able, does=frozenset({"embed"}) if model == "vectors" else frozenset({"generate"}))


def doing(
    accept_any: bool = False, served: Sequence[str] = (), seconds: float = 5.0, slots: int | None = None
) -> Doing:
    engine = Library(FakeSettings(at_once=slots))
    return Doing(Models([engine], served, accept_any=accept_any, queue=1), seconds)


async def test_a_model_is_found_by_its_name() -> None:
    doer = await doing().find("vectors", "embed")
    assert (doer.served.name, doer.served.model) == ("vectors", "vectors")
    with pytest.raises(ModelNotFound):
        await doing().find("other", "embed")


async def test_one_that_does_not_is_a_404_that_names_those_that_do() -> None:
    with pytest.raises(NotFound, match=r"The model 'chat' makes no embeddings\. Of those here, this does: vectors\."):
        await doing().find("chat", "embed")
    with pytest.raises(NotFound, match=r"The model 'chat' does not score texts\. Nor does any other here\."):
        await doing().find("chat", "score")


async def test_a_model_that_does_not_generate_is_refused_by_name() -> None:
    able = await Library().capabilities("vectors")
    with pytest.raises(UnsupportedParameter) as caught:
        refuse_unhonoured(CreateResponse(model="vectors"), frozenset(), able, "fake")
    assert caught.value.param == "model"


async def test_where_any_name_is_taken_it_is_the_first_that_does() -> None:
    doer = await doing(accept_any=True).find("text-embedding-3-small", "embed")
    assert (doer.served.name, doer.served.model) == ("text-embedding-3-small", "vectors")
    with pytest.raises(NotFound):
        await doing(accept_any=True).find("chat", "embed")  # that one exists, and does not


async def test_an_alias_means_its_own_model_and_no_other() -> None:
    with pytest.raises(NotFound):
        await doing(accept_any=True, served=("mine",)).find("mine", "embed")


async def test_without_a_name_it_is_the_first_that_does() -> None:
    assert (await doing().find(None, "embed")).served.model == "vectors"
    with pytest.raises(NotFound, match="Every model here does no pooling"):
        await doing().find(None, "pooling")


async def test_what_takes_too_long_is_given_up_and_its_place_is_free() -> None:
    work = doing(seconds=0.02, slots=1)
    doer = await work.find("vectors", "embed")
    for _ in range(2):
        with pytest.raises(EngineFailed, match="took longer than"):
            async with asyncio.timeout(30), work.place(doer, "default"):
                await asyncio.Event().wait()


async def test_the_queue_is_the_models_own_and_bounded() -> None:
    work = doing(slots=1)
    doer = await work.find("vectors", "embed")
    async with asyncio.timeout(30), work.place(doer, "default"):
        waiting = asyncio.ensure_future(_pass(work))
        await asyncio.sleep(0)
        with pytest.raises(Busy):
            async with work.place(doer, "default"):
                pass
    async with asyncio.timeout(30):
        await waiting


async def _pass(work: Doing) -> None:
    async with work.place(await work.find("vectors", "embed"), "default"):
        pass
