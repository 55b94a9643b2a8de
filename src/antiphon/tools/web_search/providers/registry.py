"""Registry of the search providers, by the first part of the scheme of --web-search-url: `searxng+https://…`."""

from importlib import import_module

from antiphon.config.tool_settings import WebSearchSettings
from antiphon.egress import EgressClient
from antiphon.errors import StartupError
from antiphon.tools.web_search.providers.base import SearchProvider

PROVIDERS: dict[str, str] = {
    "json": "antiphon.tools.web_search.providers.json_api:JsonApi",
    "searxng": "antiphon.tools.web_search.providers.searxng:SearXng",
}


def make_provider(settings: WebSearchSettings, egress: EgressClient) -> SearchProvider:
    """Create the provider; the settings must have a URL. `searxng://host` means `searxng+https://host`."""
    assert settings.url is not None
    scheme, colon, address = settings.url.partition("://")
    name, _, kind = scheme.partition("+")
    if not colon or name not in PROVIDERS or kind not in ("", "http", "https"):
        expected = " or ".join(f"{prefix}+https://…" for prefix in PROVIDERS)
        raise StartupError(f"--web-search-url is invalid; expected {expected}.")
    module, _, attribute = PROVIDERS[name].partition(":")
    provider: SearchProvider = getattr(import_module(module), attribute)(
        settings, f"{kind or 'https'}://{address}", egress
    )
    return provider
