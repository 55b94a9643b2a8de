"""The file_search tool of the server: the function that it offers to models, and its settings."""

from typing import Any, Final

from antiphon.protocol.types.tools import FileSearchTool, FunctionTool
from antiphon.protocol.types.tools import Tool as Declaration
from antiphon.tools.base import BuiltInTool, ToolServices
from antiphon.tools.file_search.response_search import MAX_QUERIES, NAME, ResponseSearch

_SETUP_HINT = "Vector stores are kept in the store: the server's operator starts it without --disable-store."
_PARAMETERS: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {
        "queries": {
            "type": "array",
            # maxLength: a model that is constrained by the schema must terminate
            "items": {"type": "string", "minLength": 1, "maxLength": 400},
            "minItems": 1,
            "maxItems": MAX_QUERIES,
            "description": "What to search for, phrased in up to four different ways.",
        }
    },
    "required": ["queries"],
    "additionalProperties": False,
}
_FUNCTION: Final = FunctionTool(
    name=NAME,
    description="Searches the files of the user by meaning and by words, and shows the best passages, each below its"
    " mark, such as 【3†notes.txt】. Cite what you take from a passage right behind it, with its mark.",
    parameters=_PARAMETERS,
    strict=False,
)


class FileSearch(BuiltInTool):
    """The file_search tool; see `BuiltInTool`."""

    kind = NAME
    types: tuple[type, ...] = (FileSearchTool,)

    def __init__(self, services: ToolServices) -> None:
        self._services = services

    @property
    def missing(self) -> str:
        return _SETUP_HINT if self._services.search is None else ""

    def list_functions(self, declared: Declaration) -> tuple[FunctionTool, ...]:
        return (_FUNCTION,)

    def begin(self, declared: Declaration, tenant: str, include: frozenset[str]) -> ResponseSearch:
        assert isinstance(declared, FileSearchTool)
        return ResponseSearch(self._services, declared, tenant, include)
