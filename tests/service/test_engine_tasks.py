"""Engine tasks: selection of a model by name or by capability, admission through the queue of the model, and
timeouts.

Covers `protocol/bodies/embeddings.py` and `protocol/bodies/passthrough.py`.
"""

import asyncio
from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from antiphon.engines.base import JSON_MEDIA_TYPE, Capabilities, Model, PassthroughReply, Task
from antiphon.engines.fake import FakeEngine, FakeSettings
from antiphon.errors import Busy, EngineFailed, ModelNotFound, NotFound, UnsupportedParameter
from antiphon.protocol.types.request import CreateResponse
from antiphon.service.engine_tasks import EngineTasks
from antiphon.service.model_io.models import ModelNaming, Models
from antiphon.service.planning.validation import reject_unsupported_by_engine

pytestmark = pytest.mark.anyio


class TwoTaskEngine(FakeEngine):
    """One model that generates and one that embeds."""

    def models(self) -> Sequence[Model]:
        return [Model(id="chat", created=1), Model(id="vectors", created=1)]

    def serves(self, model: str) -> bool:
        return model in ("chat", "vectors")

    async def capabilities(self, model: str) -> Capabilities:
        capabilities = await super().capabilities(model)
        return replace(capabilities, tasks=frozenset({"embed"}) if model == "vectors" else frozenset({"generate"}))


def make_tasks(
    accept_any: bool = False, served: Sequence[str] = (), seconds: float = 5.0, slots: int | None = None
) -> EngineTasks:
    engine = TwoTaskEngine(FakeSettings(at_once=slots))
    return EngineTasks(Models(engine, ModelNaming(served=tuple(served), accept_any=accept_any), queue=1), seconds)


async def test_a_model_is_found_by_its_name() -> None:
    target = await make_tasks().find("vectors", "embed")
    assert (target.served.name, target.served.model) == ("vectors", "vectors")
    with pytest.raises(ModelNotFound):
        await make_tasks().find("other", "embed")


async def test_a_model_without_the_task_is_a_404_that_lists_capable_models() -> None:
    with pytest.raises(NotFound, match=r"The model 'chat' does not create embeddings\. Models that do: vectors\."):
        await make_tasks().find("chat", "embed")
    with pytest.raises(NotFound, match=r"The model 'chat' does not score texts\. No model of this server does\."):
        await make_tasks().find("chat", "score")


async def test_a_model_that_does_not_generate_is_rejected() -> None:
    capabilities = await TwoTaskEngine().capabilities("vectors")
    with pytest.raises(UnsupportedParameter) as caught:
        reject_unsupported_by_engine(CreateResponse(model="vectors"), frozenset(), capabilities, "fake")
    assert caught.value.param == "model"


async def test_accept_any_maps_an_unknown_name_to_the_first_capable_model() -> None:
    target = await make_tasks(accept_any=True).find("text-embedding-3-small", "embed")
    assert (target.served.name, target.served.model) == ("text-embedding-3-small", "vectors")
    with pytest.raises(NotFound):
        await make_tasks(accept_any=True).find("chat", "embed")  # this model exists and does not embed


async def test_an_alias_never_falls_back_to_another_model() -> None:
    with pytest.raises(NotFound):
        await make_tasks(accept_any=True, served=("mine",)).find("mine", "embed")


async def test_without_a_name_the_first_capable_model_is_used() -> None:
    assert (await make_tasks().find(None, "embed")).served.model == "vectors"
    with pytest.raises(NotFound, match="No model of this server supports the task 'pooling'"):
        await make_tasks().find(None, "pooling")


async def test_a_task_over_its_timeout_fails_and_frees_its_slot() -> None:
    tasks = make_tasks(seconds=0.02, slots=1)
    target = await tasks.find("vectors", "embed")
    for _ in range(2):
        with pytest.raises(EngineFailed, match="did not finish within"):
            async with asyncio.timeout(30), tasks.admit(target, "default"):
                await asyncio.Event().wait()


async def test_the_queue_of_a_model_is_bounded() -> None:
    tasks = make_tasks(slots=1)
    target = await tasks.find("vectors", "embed")
    async with asyncio.timeout(30), tasks.admit(target, "default"):
        waiting = asyncio.ensure_future(_run_task(tasks))
        await asyncio.sleep(0)
        with pytest.raises(Busy):
            async with tasks.admit(target, "default"):
                pass
    async with asyncio.timeout(30):
        await waiting


async def _run_task(tasks: EngineTasks) -> None:
    async with tasks.admit(await tasks.find("vectors", "embed"), "default"):
        pass


class RankingEngine(FakeEngine):
    """Replies to every rerank request with the same body."""

    def __init__(self, reply: bytes) -> None:
        super().__init__()
        self._reply = reply

    async def pass_through(
        self, model: str, task: Task, body: bytes, media_type: str = JSON_MEDIA_TYPE
    ) -> PassthroughReply:
        return PassthroughReply(self._reply)


@pytest.mark.parametrize(
    "reply",
    [
        # vLLM, best first; SGLang is converted to this format
        b'{"id":"score-1","model":"m","usage":{"prompt_tokens":31,"total_tokens":31},"results":[{"index":1,"document":'
        b'{"text":"b","multi_modal":null},"relevance_score":0.9},{"index":0,"document":null,"relevance_score":-2.5}]}',
        # llama.cpp
        b'{"model":"m","object":"list","usage":{"prompt_tokens":9,"total_tokens":9},"results":[{"index":0,'
        b'"relevance_score":-2.5},{"index":1,"relevance_score":0.9}]}',
        b'{"results":[{"index":1,"relevance_score":0.9},{"index":0,"relevance_score":-2.5}]}',  # OVMS
    ],
)
async def test_documents_are_scored_in_their_order(reply: bytes) -> None:
    assert await EngineTasks(Models(RankingEngine(reply)), 5.0).rank("t", "fake", "q", ["a", "b"]) == [-2.5, 0.9]


@pytest.mark.parametrize(
    "reply",
    [
        b"{}",
        b"\xff",
        b'{"results":[{"index":0,"relevance_score":1}]}',
        b'{"results":[{"index":0,"relevance_score":1},{"index":2,"relevance_score":1}]}',
        b'{"results":[{"index":0,"relevance_score":1},{"index":1,"relevance_score":"high"}]}',
        b'{"results":[{"index":0,"relevance_score":1},{"index":1,"relevance_score":1e999}]}',
    ],
)
async def test_an_incomplete_ranking_is_an_error(reply: bytes) -> None:
    with pytest.raises(EngineFailed):
        await EngineTasks(Models(RankingEngine(reply)), 5.0).rank("t", "fake", "q", ["a", "b"])
