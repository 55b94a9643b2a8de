"""What `GET /v1/models` says about models."""

import pytest
from openai.types import Model

from antiphon.config.image_settings import ImageServiceSpec
from antiphon.egress import EgressClient
from antiphon.engines.base import Capabilities, Task
from antiphon.engines.fake import FakeEngine
from antiphon.errors import ModelNotFound, Unavailable
from antiphon.image_services.fake_service import FakeImageService
from antiphon.protocol.types.operations.models import ModelObject
from antiphon.service.images import Images
from antiphon.service.model_io.models import ModelNaming, Models
from antiphon.service.model_io.served_model import OutputTokenLimits
from antiphon.service.operations.model_catalog import ModelCatalog
from tests.api.app import run_api

pytestmark = [pytest.mark.anyio, pytest.mark.shows("I2.1")]


class OneModelEngine(FakeEngine):
    """Serves the model `fake` only, with other capabilities, or fails to report them."""

    def __init__(self, reported: Capabilities | Exception) -> None:
        super().__init__()
        self.reported = reported

    def serves(self, model: str) -> bool:
        return model == "fake"

    async def capabilities(self, model: str) -> Capabilities:
        if isinstance(self.reported, Exception):
            raise self.reported
        return self.reported


def make_capabilities(*fields: str, tasks: frozenset[Task] = frozenset({"generate"})) -> Capabilities:
    return Capabilities(level="chat", supported_fields=frozenset(fields), tasks=tasks, context=4096)


async def describe(reported: Capabilities | Exception, naming: ModelNaming | None = None) -> ModelObject:
    (model,) = await ModelCatalog(Models(OneModelEngine(reported), naming or ModelNaming())).list_models()
    return model


async def test_limits_modalities_tools_and_efforts_are_reported() -> None:
    naming = ModelNaming(default_limits=OutputTokenLimits(maximum=100))
    model = await describe(make_capabilities("tools", "input_image", "reasoning.effort"), naming)
    assert (model.context_length, model.max_output_tokens) == (4096, 100)
    assert (model.input_modalities, model.output_modalities) == (["text", "image"], ["text"])
    assert (model.tools, model.reasoning, model.reasoning_efforts) == (True, True, ["low", "medium", "high"])


async def test_what_a_model_lacks_is_reported() -> None:
    model = await describe(make_capabilities())
    assert (model.tools, model.reasoning, model.reasoning_efforts) == (False, False, [])
    embedding = await describe(make_capabilities(tasks=frozenset({"embed"})))
    assert (embedding.input_modalities, embedding.output_modalities) == (["text"], ["embedding"])
    hearing = await describe(make_capabilities(tasks=frozenset({"transcribe"})))
    assert (hearing.input_modalities, hearing.output_modalities) == (["audio"], ["text"])


async def test_a_model_of_an_engine_that_does_not_respond_is_listed_without_details() -> None:
    model = await describe(Unavailable("It is down."))
    assert (model.id, model.context_length, model.output_modalities, model.tools) == ("fake", None, [], None)


async def test_models_of_image_services_come_last_and_unknown_models_are_not_found() -> None:
    service = FakeImageService(
        ImageServiceSpec(url="fake", kind="fake", name="fake", models={"draw": "x"}), EgressClient()
    )
    catalog = ModelCatalog(Models(OneModelEngine(make_capabilities())), Images([service], 1))
    names = [model.id for model in await catalog.list_models()]
    assert names == ["fake", "draw"]
    assert (await catalog.find("draw")).output_modalities == ["image"]
    with pytest.raises(ModelNotFound):
        await catalog.find("nobody")


async def test_the_openai_package_accepts_the_fields() -> None:
    async with run_api() as server:
        listed = (await server.get("models")).json()["data"]
        model = Model.model_validate(listed[0], strict=True)
        assert model.model_extra is not None
        assert model.model_extra["context_length"] == 32_768
        assert (await server.get("models/fake")).json() == listed[0]
        assert (await server.get("models/other")).json()["context_length"] == 32_768
