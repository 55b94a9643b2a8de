"""Search options of a declaration: allowed domains, amount of output, and user location.

A domain includes its subdomains. With allowed domains, pages of other domains are neither listed nor opened.
"""

from collections.abc import Iterable

from msgspec import UNSET, Struct

from antiphon.egress.urls import normalise_host
from antiphon.protocol.types.tools import Location, WebSearchTool
from antiphon.tools.web_search.providers.base import SearchQuery

_MAX_SITES = 5  # domains added to a query; with more, only the results are filtered
_MAX_LOCATION_LENGTH = 64  # characters of a location field
# Language of most pages of a country.
_LANGUAGES = {
    "AR": "es", "AT": "de", "AU": "en", "BE": "nl", "BR": "pt", "CA": "en", "CH": "de", "CL": "es", "CN": "zh",
    "CO": "es", "CZ": "cs", "DE": "de", "DK": "da", "EE": "et", "ES": "es", "FI": "fi", "FR": "fr", "GB": "en",
    "GR": "el", "HU": "hu", "ID": "id", "IE": "en", "IL": "he", "IN": "en", "IT": "it", "JP": "ja", "KR": "ko",
    "MX": "es", "NL": "nl", "NO": "nb", "NZ": "en", "PL": "pl", "PT": "pt", "RO": "ro", "RU": "ru", "SE": "sv",
    "SK": "sk", "TH": "th", "TR": "tr", "TW": "zh", "UA": "uk", "US": "en", "VN": "vi", "ZA": "en",
}  # fmt: skip


class ContextSize(Struct, frozen=True, kw_only=True):
    """Limits on the text that a model receives at a time."""

    results: int
    snippet: int  # characters
    lines: int
    characters: int  # of all lines together


SIZES = {
    "low": ContextSize(results=5, snippet=200, lines=60, characters=4_000),
    "medium": ContextSize(results=8, snippet=400, lines=120, characters=10_000),
    "high": ContextSize(results=15, snippet=1_000, lines=300, characters=24_000),
}


class SearchOptions(Struct, frozen=True, kw_only=True):
    """The options of one declaration."""

    domains: tuple[str, ...] = ()  # empty: all are allowed
    context_size: ContextSize = SIZES["medium"]
    location: Location | None = None

    def allows(self, host: str) -> bool:
        return not self.domains or any(host == domain or host.endswith(f".{domain}") for domain in self.domains)

    def build_query(self, query: str, count: int) -> SearchQuery:
        location = self.location
        if 0 < len(self.domains) <= _MAX_SITES:
            sites = [f"site:{domain}" for domain in self.domains]
            query = f"{query} {sites[0] if len(sites) == 1 else '(' + ' OR '.join(sites) + ')'}"
        if location is None:
            return SearchQuery(query=query, count=count)
        country = (location.country or "").upper()
        country = country if len(country) == 2 and country.isascii() and country.isalpha() else ""
        language = f"{_LANGUAGES[country]}-{country}" if country in _LANGUAGES else ""
        return SearchQuery(
            query=query,
            count=count,
            language=language,
            country=country,
            region=_clean_location(location.region),
            city=_clean_location(location.city),
            timezone=_clean_location(location.timezone),
        )


def parse_options(declared: WebSearchTool) -> SearchOptions:
    domains = () if declared.filters is UNSET else _parse_domains(declared.filters.allowed_domains or ())
    size = "medium" if declared.search_context_size is UNSET else declared.search_context_size
    location = None if declared.user_location is UNSET else declared.user_location
    return SearchOptions(domains=domains, context_size=SIZES[size], location=location)


def _parse_domains(entries: Iterable[str]) -> tuple[str, ...]:
    """Parse domains to host names; clients also write `https://example.com/`.

    An invalid entry matches no host. It is not dropped, because an empty list would allow everything.
    """
    return tuple([_parse_domain(text) for text in entries])


def _parse_domain(text: str) -> str:
    host = text.strip().lower().rpartition("://")[2].partition("/")[0].partition(":")[0].removeprefix("*.")
    try:
        return normalise_host(host)
    except ValueError:
        return "invalid."  # matches no host


def _clean_location(text: str | None) -> str:
    return "".join([char for char in (text or "")[:_MAX_LOCATION_LENGTH] if char.isprintable()])
