"""The file_search tool within one response. Covers `tools/file_search/tool.py`."""

import json
from typing import Any, get_type_hints

import pytest
from openai.types.responses.file_search_tool_param import FileSearchToolParam
from openai.types.responses.file_search_tool_param import RankingOptions as ParamRankingOptions
from openai.types.responses.file_search_tool_param import RankingOptionsHybridSearch as ParamHybridSearch

from antiphon.core.deltas import Delta, Progress
from antiphon.core.file_search import SearchRequest
from antiphon.errors import BadRequest, EngineFailed, InvalidValue, VectorStoreExpired, VectorStoreTimeout
from antiphon.protocol.types.filters import EqualFilter
from antiphon.protocol.types.items import FileSearchCall, FileSearchResult
from antiphon.protocol.types.tools import FileSearchTool, HybridWeights, RankingOptions
from antiphon.tools.base import ModelToolCall, ToolResult
from antiphon.tools.file_search.response_search import ResponseSearch
from tests.protocol.decoding.requests import decode
from tests.tools.file_search.library import Library, make_hit, make_tool

pytestmark = pytest.mark.anyio

OTTERS = make_hit("otters.txt", "Otters hold hands.", score=0.75, attributes={"year": 2024})


def begin(library: Library, *include: str, **options: Any) -> ResponseSearch:
    declared = FileSearchTool(**{"vector_store_ids": ["vs_1"], **options})
    return make_tool(library, vector_store_timeout=0.01).begin(declared, "tenant", frozenset(include))


def make_call(*queries: str) -> ModelToolCall:
    return ModelToolCall(key=3, id="fs_1", name="file_search", arguments=json.dumps({"queries": queries}))


async def run(tool: ResponseSearch, *queries: str) -> tuple[ToolResult, list[Delta]]:
    deltas: list[Delta] = []

    async def record(delta: Delta) -> None:
        deltas.append(delta)

    return await tool.run(make_call(*queries), record), deltas


async def test_all_queries_are_one_search_with_the_options_of_the_declaration() -> None:
    library = Library(OTTERS)
    ranking = RankingOptions(
        ranker="default-2024-11-15",
        score_threshold=0.2,
        hybrid_search=HybridWeights(embedding_weight=2.0, text_weight=0.0),
    )
    condition = EqualFilter(key="year", value=2024)
    tool = begin(
        library, vector_store_ids=["vs_1", "vs_1"], max_num_results=7, filters=condition, ranking_options=ranking
    )
    result, deltas = await run(tool, "otters", "hands", "otters")
    expected = SearchRequest(
        stores=["vs_1"],
        queries=["otters", "hands"],
        max_results=7,
        filters=condition,
        ranker="default-2024-11-15",
        score_threshold=0.2,
        embedding_weight=2.0,
        text_weight=0.0,
    )
    assert library.requests == [("tenant", expected)]
    assert result.item == FileSearchCall(status="completed", queries=["otters", "hands"])
    assert deltas == [Progress(3, "searching")]


WEIGHTS = {"embedding_weight": 1.0, "text_weight": 1.0}
# a value of every field, by its path
FIELDS: dict[str, Any] = {
    "vector_store_ids": {"vector_store_ids": ["vs_1", "vs_2"]},
    "max_num_results": {"max_num_results": 3},
    "filters": {"filters": {"type": "eq", "key": "a", "value": 1}},
    "ranking_options": {"ranking_options": {"ranker": "none"}},
    "ranking_options.ranker": {"ranking_options": {"ranker": "none"}},
    "ranking_options.score_threshold": {"ranking_options": {"score_threshold": 0.5}},
    "ranking_options.hybrid_search": {"ranking_options": {"hybrid_search": {**WEIGHTS, "text_weight": 2}}},
    "ranking_options.hybrid_search.embedding_weight": {
        "ranking_options": {"hybrid_search": {**WEIGHTS, "embedding_weight": 2}}
    },
    "ranking_options.hybrid_search.text_weight": {"ranking_options": {"hybrid_search": {**WEIGHTS, "text_weight": 2}}},
}


@pytest.mark.parametrize("name", FIELDS)
async def test_every_field_of_the_declaration_reaches_the_search(name: str) -> None:
    declared = {"type": "file_search", "vector_store_ids": ["vs_1"], **FIELDS[name]}
    decoded = decode({"tools": [declared]})
    tool = decoded.request.tools[0]
    assert isinstance(tool, FileSearchTool)
    library = Library()
    await run(make_tool(library).begin(tool, "tenant", frozenset()), "otters")
    assert library.requests[0][1] != SearchRequest(stores=["vs_1"], queries=["otters"], max_results=20)
    assert decoded.ignored == []


@pytest.mark.parametrize(
    ("prefix", "kind"),
    [
        ("", FileSearchToolParam),
        ("ranking_options.", ParamRankingOptions),
        ("ranking_options.hybrid_search.", ParamHybridSearch),
    ],
)
def test_every_field_of_the_openai_package_is_covered(prefix: str, kind: type) -> None:
    assert {f"{prefix}{name}" for name in get_type_hints(kind) if name != "type"} <= FIELDS.keys()


async def test_the_defaults_are_twenty_results_by_both_rankings() -> None:
    library = Library(OTTERS)
    await run(begin(library), "otters")
    assert library.requests[0][1] == SearchRequest(stores=["vs_1"], queries=["otters"], max_results=20)


async def test_results_are_in_the_item_if_they_are_included() -> None:
    result, _ = await run(begin(Library(OTTERS), "file_search_call.results"), "otters")
    found = FileSearchResult(
        file_id="file-otters", filename="otters.txt", score=0.75, text="Otters hold hands.", attributes={"year": 2024}
    )
    assert result.item == FileSearchCall(status="completed", queries=["otters"], results=[found])
    result, _ = await run(begin(Library(), "file_search_call.results"), "otters")
    assert result.item == FileSearchCall(status="completed", queries=["otters"], results=[])


async def test_a_search_without_hits_says_so_and_leaves_nothing_to_cite() -> None:
    tool = begin(Library())
    result, _ = await run(tool, "unicorns", "horns")
    assert result.model_output == "The search found nothing for 'unicorns; horns'."
    assert tool.make_rewriter(is_last=True) is None


async def test_an_error_of_the_search_is_raised() -> None:
    library = Library(OTTERS)
    library.error = BadRequest("The index is broken.")
    tool = begin(library)
    with pytest.raises(BadRequest, match="The index is broken"):
        await run(tool, "otters")
    failed = tool.make_failed_result(make_call("otters"), EngineFailed("The index is broken."))
    assert failed.item == FileSearchCall(status="failed", queries=["otters"])
    assert failed.model_output == "Error: The index is broken."


@pytest.mark.parametrize("queries", [[], ["a"] * 5, [""], ["x" * 1001]])
async def test_a_call_has_one_to_four_queries(queries: list[str]) -> None:
    library = Library(OTTERS)
    with pytest.raises(InvalidValue, match="The arguments of file_search do not fit"):
        await run(begin(library), *queries)
    assert library.requests == []


async def test_an_unknown_store_is_rejected_with_its_position() -> None:
    with pytest.raises(InvalidValue, match="'vs_2'") as rejected:
        await begin(Library(), vector_store_ids=["vs_1", "vs_2"]).prepare("tools[4]", ())
    assert rejected.value.param == "tools[4].vector_store_ids[1]"


async def test_an_expired_store_is_rejected_with_its_position() -> None:
    library = Library()
    library.expired = True
    with pytest.raises(VectorStoreExpired) as rejected:
        await begin(library).prepare("tools[0]", ())
    assert rejected.value.param == "tools[0].vector_store_ids[0]"


async def test_a_store_that_is_indexed_is_not_waited_for() -> None:
    assert await begin(Library()).prepare("tools[0]", ()) is None


async def test_a_store_that_is_being_indexed_is_waited_for_up_to_the_limit() -> None:
    library = Library()
    library.indexed.clear()
    wait = await begin(library).prepare("tools[0]", ())
    assert wait is not None
    with pytest.raises(VectorStoreTimeout, match=r"vs_1 are still being indexed after 0.01 seconds"):
        await wait()
    library.indexed.set()
    await wait()


def test_the_tool_needs_a_store() -> None:
    assert "--disable-store" in make_tool(None).missing
    assert make_tool(Library()).missing == ""
