"""What a declaration wants of a search: which domains, how much is shown, and for whom.

A domain stands for itself and all that is below it. With domains that are allowed, pages of others are neither found
nor opened.
"""

from collections.abc import Iterable

from msgspec import UNSET, Struct

from antiphon.egress.urls import host_name
from antiphon.protocol.types.tools import Location, WebSearchTool
from antiphon.tools.web_search.providers.base import Question

_SITES = 5  # domains that a query names; with more of them the results are only looked through
_LONGEST = 64  # characters of a place
# The language that most pages of a country are in, where it is not the same in most of the world.
_LANGUAGES = {
    "AR": "es", "AT": "de", "AU": "en", "BE": "nl", "BR": "pt", "CA": "en", "CH": "de", "CL": "es", "CN": "zh",
    "CO": "es", "CZ": "cs", "DE": "de", "DK": "da", "EE": "et", "ES": "es", "FI": "fi", "FR": "fr", "GB": "en",
    "GR": "el", "HU": "hu", "ID": "id", "IE": "en", "IL": "he", "IN": "en", "IT": "it", "JP": "ja", "KR": "ko",
    "MX": "es", "NL": "nl", "NO": "nb", "NZ": "en", "PL": "pl", "PT": "pt", "RO": "ro", "RU": "ru", "SE": "sv",
    "SK": "sk", "TH": "th", "TR": "tr", "TW": "zh", "UA": "uk", "US": "en", "VN": "vi", "ZA": "en",
}  # fmt: skip


class Measure(Struct, frozen=True, kw_only=True):
    """How much a model is shown at a time."""

    results: int
    snippet: int  # characters
    lines: int
    characters: int  # of all lines


SIZES = {
    "low": Measure(results=5, snippet=200, lines=60, characters=4_000),
    "medium": Measure(results=8, snippet=400, lines=120, characters=10_000),
    "high": Measure(results=15, snippet=1_000, lines=300, characters=24_000),
}


class Wishes(Struct, frozen=True, kw_only=True):
    domains: tuple[str, ...] = ()  # none: all are allowed
    measure: Measure = SIZES["medium"]
    location: Location | None = None

    def allows(self, host: str) -> bool:
        return not self.domains or any(host == domain or host.endswith(f".{domain}") for domain in self.domains)

    def question(self, query: str, count: int) -> Question:
        place = self.location
        if 0 < len(self.domains) <= _SITES:
            sites = [f"site:{domain}" for domain in self.domains]
            query = f"{query} {sites[0] if len(sites) == 1 else '(' + ' OR '.join(sites) + ')'}"
        if place is None:
            return Question(query=query, count=count)
        country = (place.country or "").upper()
        country = country if len(country) == 2 and country.isascii() and country.isalpha() else ""
        language = f"{_LANGUAGES[country]}-{country}" if country in _LANGUAGES else ""
        return Question(
            query=query,
            count=count,
            language=language,
            country=country,
            region=_place(place.region),
            city=_place(place.city),
            timezone=_place(place.timezone),
        )


def wishes_of(declared: WebSearchTool) -> Wishes:
    domains = () if declared.filters is UNSET else _domains(declared.filters.allowed_domains or ())
    size = "medium" if declared.search_context_size is UNSET else declared.search_context_size
    location = None if declared.user_location is UNSET else declared.user_location
    return Wishes(domains=domains, measure=SIZES[size], location=location)


def _domains(given: Iterable[str]) -> tuple[str, ...]:
    """As hosts: clients write `https://example.com/` too. What is none allows nothing, and is not left out: it would
    allow everything."""
    return tuple([_domain(text) for text in given])


def _domain(text: str) -> str:
    host = text.strip().lower().rpartition("://")[2].partition("/")[0].partition(":")[0].removeprefix("*.")
    try:
        return host_name(host)
    except ValueError:
        return "invalid."  # no host ends so


def _place(text: str | None) -> str:
    return "".join([char for char in (text or "")[:_LONGEST] if char.isprintable()])
