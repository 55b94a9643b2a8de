"""The web_search tool on a tool server, which has gpt-oss's functions `search`, `open` and `find`.

The server numbers its pages: `[3] Otters (https://otters.example/)` begins the page that models cite as 【3†L10】.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Final

from msgspec import UNSET
from msgspec.structs import asdict

from antiphon.core.deltas import Progress, ToolOutputContent
from antiphon.errors import McpFailed
from antiphon.protocol.types import items as it
from antiphon.protocol.types.tools import FunctionTool, WebSearchTool
from antiphon.protocol.types.tools import Tool as Declaration
from antiphon.tools.base import DeltaSink, ModelToolCall, ToolResult
from antiphon.tools.mcp.response_tools import truncate
from antiphon.tools.tool_server.server import Json, ServedTool, ServerSession
from antiphon.tools.untrusted_text import escape_markers
from antiphon.tools.web_search.browser import INCLUDE_RESULTS, INCLUDE_SOURCES, BrowserTool
from antiphon.tools.web_search.functions import (
    RECIPIENTS,
    FunctionArguments,
    OpenArguments,
    list_ignored_options,
    parse_arguments,
)
from antiphon.tools.web_search.page_view import ResponsePages, parse_rendered
from antiphon.tools.web_search.tool import WebSearch

_SERVER_FUNCTIONS: Final[Mapping[str, str]] = {name: full.partition(".")[2] for full, name in RECIPIENTS.items()}
_URL: Final = re.compile(r"https?://[^\s()<>\"'【】]+")
_FIND_SUFFIX: Final = "/find?pattern="  # after the URL of a page, where gpt-oss's browser shows matches in it
_MAX_SOURCES: Final = 20
_MAX_ERROR_BYTES: Final = 2000


class ServedWebSearch(ServedTool, WebSearch):
    """The web_search tool; see `BuiltInTool`."""

    server_name = "browser"
    labels = frozenset({"browser", "web_search", "web_search_preview"})

    def list_functions(self, declared: Declaration) -> tuple[FunctionTool, ...]:
        functions = super().list_functions(declared)
        return self.describe(functions, str(functions[0].description) if functions else "")

    def list_ignored(self, declared: Declaration) -> list[str]:
        assert isinstance(declared, WebSearchTool)
        size = [] if declared.search_context_size is UNSET else ["tools.search_context_size"]
        return [*size, *list_ignored_options(declared, frozenset())]

    def begin(  # type: ignore[override]  # both are tools of the protocol
        self, declared: Declaration, tenant: str, include: frozenset[str]
    ) -> "ServerBrowser":
        assert isinstance(declared, WebSearchTool)
        return ServerBrowser(ServerSession(self, tenant), declared, include)


class ServerBrowser(BrowserTool):
    """The web_search tool within one response."""

    def __init__(self, session: ServerSession, declared: WebSearchTool, include: frozenset[str]) -> None:
        super().__init__(ResponsePages(0, 0), include)
        self.session = session
        self._declared = declared
        self._shown = -1  # cursor of the page that was shown last, if the server has numbered it

    @property
    def max_seconds(self) -> float:
        return self.session.max_seconds

    async def prepare(self, param: str, history: Sequence[it.InputItem]) -> None:
        if self._declared.filters and self._declared.filters.allowed_domains:
            self.session.refuse("searches all domains", f"{param}.filters.allowed_domains")
        if INCLUDE_RESULTS in self._include:
            self.session.refuse("returns results as text only", "include")

    async def run(self, call: ModelToolCall, emit: DeltaSink) -> ToolResult:
        arguments = parse_arguments(call.name, call.arguments)
        async with self.session.in_order:
            await emit(Progress(call.key, "searching"))
            action = self._build_action(call)  # before another page is the current one
            result = await self.session.call(_SERVER_FUNCTIONS[call.name], _to_server_arguments(arguments))
            text = self.session.render(result)
            if result.get("isError"):
                raise McpFailed(truncate(text, _MAX_ERROR_BYTES))
            self.restore_output(text)
        if isinstance(action, it.SearchAction) and INCLUDE_SOURCES in self._include:
            action.sources = [it.Source(url=url) for url in dict.fromkeys(_URL.findall(text))][:_MAX_SOURCES]
        elif isinstance(action, it.OpenPageAction):
            action.url = self._get_page_url(None) or action.url
        return ToolResult(item=it.WebSearchCall(status="completed", action=action), model_output=text or "[Nothing.]")

    def restore_output(self, output: ToolOutputContent) -> None:
        if isinstance(output, str):
            head, separator, lines = output.partition("\n")
            url, found, _ = head.partition(_FIND_SUFFIX)
            page = (f"{url})" if found else head) + separator + lines
            self._pages.restore(page)
            self._shown = parse_rendered(page)[0]

    def _build_open_action(self, arguments: OpenArguments) -> it.OpenPageAction:
        if arguments.link is None:
            return it.OpenPageAction(url=self._get_page_url(arguments.cursor) or UNSET)
        return it.OpenPageAction(url=escape_markers(arguments.link) if isinstance(arguments.link, str) else UNSET)

    def _get_page_url(self, cursor: int | None) -> str:
        page = self._pages.get(self._shown if cursor is None or cursor < 0 else cursor)
        return "" if page is None else page.url


def _to_server_arguments(arguments: FunctionArguments) -> Json:
    fields = asdict(arguments)
    if isinstance(arguments, OpenArguments):
        fields |= {"id": arguments.link, "url": None}
    return {name: value for name, value in fields.items() if value is not None}
