"""The functions that a model is offered, the parsing of its arguments, and the search options of a declaration.

They are the functions of gpt-oss's browser under descriptive names: models trained on those know them already, and
their descriptions suffice for any other model that can call functions. With allowed domains, which include their
subdomains, pages of other domains are neither listed nor opened.
"""

from typing import Annotated, Any, Final

import msgspec
from msgspec import UNSET, Meta, Struct

from antiphon.egress.urls import normalise_host
from antiphon.errors import InvalidValue
from antiphon.protocol.types.tools import FunctionTool, Location, WebSearchTool
from antiphon.tools.untrusted_text import decode_arguments
from antiphon.tools.web_search.providers import SearchQuery

SEARCH, OPEN, FIND = "web_search", "web_open", "web_find"
HARMONY: Final = "browser"
RECIPIENTS: Final = {f"{HARMONY}.search": SEARCH, f"{HARMONY}.open": OPEN, f"{HARMONY}.find": FIND}

_MAX_QUERY_LENGTH = 1000
# maxLength: a model that is constrained by the schema must terminate
_OFFERED_TEXT: Final = {"type": "string", "minLength": 1, "maxLength": 400}

_CITE = (
    "Cite what you take from the web right behind it, as 【{cursor}†L{line}】 or 【{cursor}†L{first}-L{last}】:"
    " 【3†L10-L12】 cites the lines 10 to 12 of the page shown as [3]."
)


class SearchArguments(Struct, frozen=True, kw_only=True):
    """Arguments of web_search."""

    query: Annotated[str, Meta(min_length=1, max_length=_MAX_QUERY_LENGTH)]
    topn: int | None = None


class OpenArguments(Struct, frozen=True, kw_only=True):
    """Arguments of web_open."""

    id: int | str | None = None
    url: str | None = None  # some models use this key
    cursor: int | None = None
    loc: int | None = None
    num_lines: int | None = None

    @property
    def link(self) -> int | str | None:
        """The number of a link, a URL, or None for a page that was already shown. gpt-oss writes -1 for None."""
        target = self.url or self.id
        if isinstance(target, str):
            text = target.strip()
            return int(text) if text.isascii() and text.isdigit() and len(text) <= 6 else text or None
        return None if target is None or target < 0 else target


class FindArguments(Struct, frozen=True, kw_only=True):
    """Arguments of web_find."""

    pattern: Annotated[str, Meta(min_length=1, max_length=_MAX_QUERY_LENGTH)]
    cursor: int | None = None


FunctionArguments = SearchArguments | OpenArguments | FindArguments
_decoders: Final[dict[str, msgspec.json.Decoder[FunctionArguments]]] = {
    SEARCH: msgspec.json.Decoder(SearchArguments, strict=False),
    OPEN: msgspec.json.Decoder(OpenArguments, strict=False),
    FIND: msgspec.json.Decoder(FindArguments, strict=False),
}


def parse_arguments(name: str, arguments: str) -> FunctionArguments:
    """Parse the arguments. Raises InvalidValue with a message for the model.

    Numbers may be strings, because small models write them so.
    """
    if name not in _decoders:
        raise InvalidValue(f"There is no function {name!r} here.", param="name")
    return decode_arguments(_decoders[name], name, arguments)


def _make_function(name: str, description: str, required: list[str], **properties: dict[str, Any]) -> FunctionTool:
    parameters = {"type": "object", "properties": properties, "required": required, "additionalProperties": False}
    return FunctionTool(name=name, description=description, parameters=parameters, strict=False)


def _integer(description: str) -> dict[str, Any]:
    return {"type": "integer", "description": description}


FUNCTIONS: Final = (
    _make_function(
        SEARCH,
        "Searches the web and shows a numbered page of results, each with a numbered link, its URL and a few words."
        f" Open the ones that matter before you rely on them. {_CITE}",
        ["query"],
        query={**_OFFERED_TEXT, "description": "What to search for."},
        topn=_integer("How many results to show."),
    ),
    _make_function(
        OPEN,
        "Opens a page of the web and shows its text as numbered lines; or shows more of a page that was opened. Links"
        f" stand in the text as 【id†text†host】. {_CITE}",
        [],
        id={
            "type": "string",
            "description": "The number of a link on the page `cursor`, or a URL. Leave it out to go on in that page.",
        },
        cursor=_integer(
            "The number of the page with the link, or to go on in: 3 for [3]. If left out: the last page that was"
            " shown."
        ),
        loc=_integer("The line to begin with."),
        num_lines=_integer("How many lines to show."),
    ),
    _make_function(
        FIND,
        f"Finds a text in a page that was opened and shows the lines around it. {_CITE}",
        ["pattern"],
        pattern={**_OFFERED_TEXT, "description": "The text to find, word for word; its case does not matter."},
        cursor=_integer("The number of the page. If left out: the last page that was shown."),
    ),
)

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
    types: str = ""  # content types that the results have; "": any

    def allows(self, host: str) -> bool:
        return not self.domains or any(host == domain or host.endswith(f".{domain}") for domain in self.domains)

    def build_query(self, query: str, count: int) -> SearchQuery:
        location = self.location
        if 0 < len(self.domains) <= _MAX_SITES:
            sites = [f"site:{domain}" for domain in self.domains]
            query = f"{query} {sites[0] if len(sites) == 1 else '(' + ' OR '.join(sites) + ')'}"
        if location is None:
            return SearchQuery(query=query, count=count, types=self.types)
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
            types=self.types,
        )


def parse_options(declared: WebSearchTool) -> SearchOptions:
    domains = () if declared.filters is UNSET else declared.filters.allowed_domains or ()
    size = "medium" if declared.search_context_size is UNSET else declared.search_context_size
    location = None if declared.user_location is UNSET else declared.user_location
    types = declared.search_content_types or ()
    return SearchOptions(
        domains=tuple([_parse_domain(text) for text in domains]),
        context_size=SIZES[size],
        location=location,
        types=",".join(sorted(set(types), reverse=True)) if "image" in types else "",
    )


def list_ignored_options(declared: WebSearchTool, fields: frozenset[str]) -> list[str]:
    """Return the options without effect if the provider uses only these fields of a query."""
    query = parse_options(declared).build_query("", 0)
    effective = {name for name in fields if getattr(query, name, "")}
    if "language" in effective:
        effective.add("country")
    location = declared.user_location or Location()
    names = [name for name in ("city", "country", "region", "timezone") if getattr(location, name)]
    ignored = [f"tools.user_location.{name}" for name in names if name not in effective]
    return [*ignored, "tools.search_content_types"] if query.types and "types" not in effective else ignored


def _parse_domain(text: str) -> str:
    """Parse a domain to a host name; clients also write `https://example.com/`.

    An invalid entry matches no host. It is not dropped, because an empty list would allow everything.
    """
    host = text.strip().lower().rpartition("://")[2].partition("/")[0].partition(":")[0].removeprefix("*.")
    try:
        return normalise_host(host)
    except ValueError:
        return "invalid."


def _clean_location(text: str | None) -> str:
    return "".join([char for char in (text or "")[:_MAX_LOCATION_LENGTH] if char.isprintable()])
