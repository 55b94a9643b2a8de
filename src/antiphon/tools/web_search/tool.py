"""web_search as the server has it: what searches, what reads pages, and what is offered to models."""

from collections.abc import Mapping

from antiphon.config import Config
from antiphon.egress import Egress
from antiphon.errors import StartupError
from antiphon.protocol.types.tools import (
    FunctionTool,
    WebSearchPreviewTool,
    WebSearchPreviewTool20250311,
    WebSearchTool,
    WebSearchTool20250826,
)
from antiphon.protocol.types.tools import Tool as Declaration
from antiphon.tools.web_search.browser import Browser, Means
from antiphon.tools.web_search.functions import FUNCTIONS, HARMONY, RECIPIENTS
from antiphon.tools.web_search.options import wishes_of
from antiphon.tools.web_search.page_fetch import Reader, is_installed
from antiphon.tools.web_search.providers.registry import make_provider

_MISSING = "The server's operator sets up web_search with --web-search-url, such as searxng+https://HOST."
_WAITING = 10.0  # seconds until it is a page's turn to be read
_EXTRA = "--web-search-url needs one more package: pip install 'antiphon[web]'."


class WebSearch:
    kind = "web_search"
    types: tuple[type, ...] = (
        WebSearchTool,
        WebSearchTool20250826,
        WebSearchPreviewTool,
        WebSearchPreviewTool20250311,
    )
    harmony = HARMONY
    recipients: Mapping[str, str] = RECIPIENTS

    def __init__(self, config: Config, egress: Egress) -> None:
        self._means: Means | None = None
        if config.web_search.url is not None:
            self._means = _means(config, egress)

    @property
    def missing(self) -> str:
        return _MISSING if self._means is None else ""

    def functions(self, declared: Declaration) -> tuple[FunctionTool, ...]:
        """None for a client that wants no live access: nothing is kept here that could be searched instead."""
        return () if _is_offline(declared) else FUNCTIONS

    def begin(self, declared: Declaration, tenant: str, include: frozenset[str]) -> Browser:
        assert isinstance(declared, WebSearchTool)
        assert self._means is not None
        return Browser(self._means, wishes_of(declared), include)

    async def close(self) -> None:
        pass


def _means(config: Config, egress: Egress) -> Means:
    if not is_installed():
        raise StartupError(_EXTRA)
    settings = config.web_search
    return Means(
        provider=make_provider(settings, egress),
        reader=Reader(egress, config.egress_timeout, settings.timeout),
        pages=settings.max_pages,
        seconds=config.egress_timeout + settings.timeout + _WAITING,
    )


def _is_offline(declared: Declaration) -> bool:
    return isinstance(declared, WebSearchTool) and declared.external_web_access is False
