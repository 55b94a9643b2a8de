"""The functions that a model is offered, and what it said when it called one of them.

They are those of gpt-oss's browser, under names that say what they are for: a model that knows these already has
nothing to learn, and any other that calls functions is told all there is to know.
"""

from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta, Struct

from antiphon.errors import InvalidValue
from antiphon.protocol.types.tools import FunctionTool

SEARCH, OPEN, FIND = "web_search", "web_open", "web_find"
HARMONY: Final = "browser"
RECIPIENTS: Final = {f"{HARMONY}.search": SEARCH, f"{HARMONY}.open": OPEN, f"{HARMONY}.find": FIND}

LONGEST = 64 * 1024  # characters of arguments
_LONGEST_QUERY = 1000
_LONGEST_OFFERED = 400  # a model that is held to the schema has to come to an end

_CITE = (
    "Cite what you take from the web right behind it, as 【{cursor}†L{line}】 or 【{cursor}†L{first}-L{last}】:"
    " 【3†L10-L12】 cites the lines 10 to 12 of the page shown as [3]."
)


class Search(Struct, frozen=True, kw_only=True):
    query: Annotated[str, Meta(min_length=1, max_length=_LONGEST_QUERY)]
    topn: int | None = None


class Open(Struct, frozen=True, kw_only=True):
    id: int | str | None = None
    url: str | None = None  # some say it so
    cursor: int | None = None
    loc: int | None = None
    num_lines: int | None = None

    @property
    def link(self) -> int | str | None:
        """A link's number, a URL, or nothing: then it is about a page that was shown already. gpt-oss says -1."""
        named = self.url or self.id
        if isinstance(named, str):
            text = named.strip()
            return int(text) if text.isascii() and text.isdigit() and len(text) <= 6 else text or None
        return None if named is None or named < 0 else named


class Find(Struct, frozen=True, kw_only=True):
    pattern: Annotated[str, Meta(min_length=1, max_length=_LONGEST_QUERY)]
    cursor: int | None = None


Asked = Search | Open | Find
_decoders: Final[dict[str, msgspec.json.Decoder[Asked]]] = {
    SEARCH: msgspec.json.Decoder(Search, strict=False),
    OPEN: msgspec.json.Decoder(Open, strict=False),
    FIND: msgspec.json.Decoder(Find, strict=False),
}


def read(name: str, arguments: str) -> Asked:
    """Raises InvalidValue, in words for the model. Numbers may be texts: small models write them so."""
    if name not in _decoders:
        raise InvalidValue(f"There is no function {name!r} here.", param="name")
    if len(arguments) > LONGEST:
        raise InvalidValue(f"The arguments have more than {LONGEST} characters.", param="arguments")
    try:
        return _decoders[name].decode(arguments.strip() or "{}")
    except (msgspec.MsgspecError, UnicodeError) as error:
        raise InvalidValue(f"The arguments of {name} do not fit: {error}.", param="arguments") from None
    except RecursionError:
        raise InvalidValue(f"The arguments of {name} are nested too deeply.", param="arguments") from None


def _function(name: str, description: str, required: list[str], properties: dict[str, Any]) -> FunctionTool:
    parameters = {"type": "object", "properties": properties, "required": required, "additionalProperties": False}
    return FunctionTool(name=name, description=description, parameters=parameters, strict=False)


FUNCTIONS: Final = (
    _function(
        SEARCH,
        "Searches the web and shows a numbered page of results, each with a numbered link, its URL and a few words."
        f" Open the ones that matter before you rely on them. {_CITE}",
        ["query"],
        {
            "query": {
                "type": "string",
                "minLength": 1,
                "maxLength": _LONGEST_OFFERED,
                "description": "What to search for.",
            },
            "topn": {"type": "integer", "description": "How many results to show."},
        },
    ),
    _function(
        OPEN,
        "Opens a page of the web and shows its text as numbered lines; or shows more of a page that was opened. Links"
        f" stand in the text as 【id†text†host】. {_CITE}",
        [],
        {
            "id": {
                "type": "string",
                "description": "The number of a link on the page `cursor`, or a URL. Leave it out to go on in that"
                " page.",
            },
            "cursor": {
                "type": "integer",
                "description": "The number of the page with the link, or to go on in: 3 for [3]. If left out: the last"
                " page that was shown.",
            },
            "loc": {"type": "integer", "description": "The line to begin with."},
            "num_lines": {"type": "integer", "description": "How many lines to show."},
        },
    ),
    _function(
        FIND,
        f"Finds a text in a page that was opened and shows the lines around it. {_CITE}",
        ["pattern"],
        {
            "pattern": {
                "type": "string",
                "minLength": 1,
                "maxLength": _LONGEST_OFFERED,
                "description": "The text to find, word for word; its case does not matter.",
            },
            "cursor": {
                "type": "integer",
                "description": "The number of the page. If left out: the last page that was shown.",
            },
        },
    ),
)
