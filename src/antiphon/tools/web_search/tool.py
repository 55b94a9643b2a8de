"""The web_search tool of the server: its provider, its page reader, and the functions offered to models."""

from collections.abc import Mapping

from antiphon.config import Config
from antiphon.egress import EgressClient
from antiphon.errors import StartupError
from antiphon.protocol.types.tools import (
    FunctionTool,
    WebSearchPreviewTool,
    WebSearchPreviewTool20250311,
    WebSearchTool,
    WebSearchTool20250826,
)
from antiphon.protocol.types.tools import Tool as Declaration
from antiphon.tools.base import BuiltInTool, ToolServices
from antiphon.tools.web_search.browser import Browser, BrowserServices
from antiphon.tools.web_search.functions import FUNCTIONS, HARMONY, RECIPIENTS, list_ignored_options, parse_options
from antiphon.tools.web_search.page_fetch import PageReader, is_installed
from antiphon.tools.web_search.providers import make_provider

_SETUP_HINT = "The server's operator sets up web_search with --web-search-url, such as searxng+https://HOST."
_QUEUE_SECONDS = 10.0  # queueing time before a page is parsed
_MISSING_PACKAGE = "--web-search-url needs one more package: pip install 'antiphon[web]'."


class WebSearch(BuiltInTool):
    """The web_search tool; see `BuiltInTool`."""

    kind = "web_search"
    types: tuple[type, ...] = (WebSearchTool, WebSearchTool20250826, WebSearchPreviewTool, WebSearchPreviewTool20250311)
    harmony = HARMONY
    recipients: Mapping[str, str] = RECIPIENTS

    def __init__(self, services: ToolServices) -> None:
        self._services: BrowserServices | None = None
        if services.config.web_search.url is not None:
            self._services = _build_services(services.config, services.egress)

    @property
    def missing(self) -> str:
        return _SETUP_HINT if self._services is None else ""

    def list_functions(self, declared: Declaration) -> tuple[FunctionTool, ...]:
        """Return no functions for a client that wants no live access: there is no stored index to search."""
        is_offline = isinstance(declared, WebSearchTool) and declared.external_web_access is False
        return () if is_offline else FUNCTIONS

    def list_ignored(self, declared: Declaration) -> list[str]:
        assert isinstance(declared, WebSearchTool)
        assert self._services is not None
        return list_ignored_options(declared, self._services.provider.fields)

    def begin(self, declared: Declaration, tenant: str, include: frozenset[str]) -> Browser:
        assert isinstance(declared, WebSearchTool)
        assert self._services is not None
        return Browser(self._services, parse_options(declared), include)


def _build_services(config: Config, egress: EgressClient) -> BrowserServices:
    if not is_installed():
        raise StartupError(_MISSING_PACKAGE)
    settings = config.web_search
    return BrowserServices(
        provider=make_provider(settings, egress),
        reader=PageReader(egress, config.tools.egress_timeout, settings.timeout),
        max_pages=settings.max_pages,
        max_seconds=config.tools.egress_timeout + settings.timeout + _QUEUE_SECONDS,
    )
