"""The services there are to search with, by the first word of --web-search-url: `searxng+https://…`."""

from importlib import import_module

from antiphon.config.web_search import WebSearchSettings
from antiphon.egress import Egress
from antiphon.errors import StartupError
from antiphon.tools.web_search.providers.base import Provider

PROVIDERS: dict[str, str] = {
    "json": "antiphon.tools.web_search.providers.json_api:JsonApi",
    "searxng": "antiphon.tools.web_search.providers.searxng:SearXng",
}


def make_provider(settings: WebSearchSettings, egress: Egress) -> Provider:
    """Of settings with a URL. `searxng://host` is `searxng+https://host`."""
    assert settings.url is not None
    scheme, colon, rest = settings.url.partition("://")
    name, _, kind = scheme.partition("+")
    if not colon or name not in PROVIDERS or kind not in ("", "http", "https"):
        expected = " or ".join(f"{known}+https://…" for known in PROVIDERS)
        raise StartupError(f"--web-search-url does not fit; expected {expected}.")
    module, _, attribute = PROVIDERS[name].partition(":")
    provider: Provider = getattr(import_module(module), attribute)(settings, f"{kind or 'https'}://{rest}", egress)
    return provider
