"""File searches of one response. Their numbered passages are forgotten at its end."""

from collections.abc import Sequence
from typing import Annotated, Final

import msgspec
from msgspec import Meta, Struct

from antiphon.core.deltas import Progress, ToolOutputContent
from antiphon.core.file_search import SearchHit, make_request
from antiphon.errors import AntiphonError, BadRequest, InvalidValue, NotFound, VectorStoreTimeout
from antiphon.protocol.types.items import FileSearchCall, FileSearchResult, InputItem
from antiphon.protocol.types.tools import FileSearchTool
from antiphon.tools.base import DeltaSink, ModelToolCall, ResponseTool, Rewriter, ToolResult, ToolServices, WaitStep
from antiphon.tools.file_search.citations import FileCitationRewriter
from antiphon.tools.file_search.passages import Passages
from antiphon.tools.untrusted_text import decode_arguments

NAME: Final = "file_search"
MAX_QUERIES = 4
_INCLUDE_RESULTS = "file_search_call.results"
_Query = Annotated[str, Meta(min_length=1, max_length=1000)]


class FileSearchArguments(Struct, frozen=True, kw_only=True):
    queries: Annotated[list[_Query], Meta(min_length=1, max_length=MAX_QUERIES)]


_decoder: Final = msgspec.json.Decoder(FileSearchArguments)


def parse_queries(call: ModelToolCall) -> list[str]:
    """Return the queries of a call, without repetitions. Raises InvalidValue with a message for the model."""
    if call.name != NAME:
        raise InvalidValue(f"There is no function {call.name!r} here.", param="name")
    return [*dict.fromkeys(decode_arguments(_decoder, NAME, call.arguments).queries)]


class ResponseSearch(ResponseTool):
    """The file_search tool within one response; see `ResponseTool`."""

    max_seconds = 0.0  # from the settings

    def __init__(self, services: ToolServices, declared: FileSearchTool, tenant: str, include: frozenset[str]) -> None:
        assert services.search is not None
        self._backend = services.search
        self._index_seconds = services.config.tools.vector_store_timeout
        self._declared = declared
        self._stores = [*dict.fromkeys(declared.vector_store_ids)]
        self._tenant = tenant
        self._include_results = _INCLUDE_RESULTS in include
        self._passages = Passages()
        self.max_seconds = services.config.tools.tool_timeout

    async def prepare(self, param: str, history: Sequence[InputItem]) -> WaitStep | None:
        for index, store in enumerate(self._declared.vector_store_ids):
            try:
                await self._backend.check_store(self._tenant, store)
            except NotFound as error:
                raise InvalidValue(error.message, param=f"{param}.vector_store_ids[{index}]") from None
            except BadRequest as error:
                error.param = f"{param}.vector_store_ids[{index}]"
                raise
        return None if await self._backend.wait_indexed(self._tenant, self._stores, 0.0) else self._wait_indexed

    async def _wait_indexed(self) -> None:
        seconds = self._index_seconds
        if not await self._backend.wait_indexed(self._tenant, self._stores, seconds):
            raise VectorStoreTimeout(
                f"Files of the vector stores {', '.join(self._stores)} are still being indexed after {seconds:g} "
                "seconds. Try again later; GET /v1/vector_stores/{id} reports the progress."
            )

    def start_item(self, call: ModelToolCall) -> FileSearchCall:
        return FileSearchCall(status="in_progress", queries=[])  # OpenAI shows the queries at the end

    async def run(self, call: ModelToolCall, emit: DeltaSink) -> ToolResult:
        queries = parse_queries(call)
        await emit(Progress(call.key, "searching"))
        declared = self._declared
        request = make_request(
            self._stores, queries, declared.max_num_results, declared.filters, declared.ranking_options
        )
        hits = await self._backend.search(self._tenant, request)
        results = [*map(_to_result, hits)] if self._include_results else None
        nothing = f"The search found nothing for {'; '.join(queries)!r}."
        return ToolResult(
            item=FileSearchCall(status="completed", queries=queries, results=results),
            model_output=self._passages.render(hits) if hits else nothing,
        )

    def make_failed_result(self, call: ModelToolCall, failure: AntiphonError) -> ToolResult:
        try:
            queries = parse_queries(call)
        except AntiphonError:
            queries = []
        return ToolResult(
            item=FileSearchCall(status="failed", queries=queries), model_output=f"Error: {failure.message}"
        )

    def restore_output(self, output: ToolOutputContent) -> None:
        if isinstance(output, str):
            self._passages.restore(output)

    def make_rewriter(self, is_last: bool) -> Rewriter | None:
        return FileCitationRewriter(self._passages, is_last) if self._passages else None

    async def close(self) -> None:
        self._passages = Passages()


def _to_result(hit: SearchHit) -> FileSearchResult:
    return FileSearchResult(
        file_id=hit.file_id, filename=hit.filename, score=hit.score, text=hit.text, attributes=hit.attributes
    )
