"""The functions that a model is offered, and the parsing of its arguments.

They are the functions of gpt-oss's browser under descriptive names: models trained on those know them already, and
their descriptions suffice for any other model that can call functions.
"""

from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta, Struct

from antiphon.errors import InvalidValue
from antiphon.protocol.types.tools import FunctionTool

SEARCH, OPEN, FIND = "web_search", "web_open", "web_find"
HARMONY: Final = "browser"
RECIPIENTS: Final = {f"{HARMONY}.search": SEARCH, f"{HARMONY}.open": OPEN, f"{HARMONY}.find": FIND}

MAX_ARGUMENT_LENGTH = 64 * 1024  # characters
_MAX_QUERY_LENGTH = 1000
_MAX_OFFERED_LENGTH = 400  # maxLength in the schema: a model constrained by it must terminate

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
    if len(arguments) > MAX_ARGUMENT_LENGTH:
        raise InvalidValue(f"The arguments have more than {MAX_ARGUMENT_LENGTH} characters.", param="arguments")
    try:
        return _decoders[name].decode(arguments.strip() or "{}")
    except (msgspec.MsgspecError, UnicodeError) as error:
        raise InvalidValue(f"The arguments of {name} do not fit: {error}.", param="arguments") from None
    except RecursionError:
        raise InvalidValue(f"The arguments of {name} are nested too deeply.", param="arguments") from None


def _make_function(name: str, description: str, required: list[str], properties: dict[str, Any]) -> FunctionTool:
    parameters = {"type": "object", "properties": properties, "required": required, "additionalProperties": False}
    return FunctionTool(name=name, description=description, parameters=parameters, strict=False)


FUNCTIONS: Final = (
    _make_function(
        SEARCH,
        "Searches the web and shows a numbered page of results, each with a numbered link, its URL and a few words."
        f" Open the ones that matter before you rely on them. {_CITE}",
        ["query"],
        {
            "query": {
                "type": "string",
                "minLength": 1,
                "maxLength": _MAX_OFFERED_LENGTH,
                "description": "What to search for.",
            },
            "topn": {"type": "integer", "description": "How many results to show."},
        },
    ),
    _make_function(
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
    _make_function(
        FIND,
        f"Finds a text in a page that was opened and shows the lines around it. {_CITE}",
        ["pattern"],
        {
            "pattern": {
                "type": "string",
                "minLength": 1,
                "maxLength": _MAX_OFFERED_LENGTH,
                "description": "The text to find, word for word; its case does not matter.",
            },
            "cursor": {
                "type": "integer",
                "description": "The number of the page. If left out: the last page that was shown.",
            },
        },
    ),
)
