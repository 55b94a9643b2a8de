"""The code_interpreter tool of the server: the function that it offers to models."""

from collections.abc import Mapping
from typing import Any, Final

from msgspec.structs import replace

from antiphon.protocol.types.tools import AutoContainer, CodeInterpreterTool, FunctionTool, may_models_call
from antiphon.protocol.types.tools import Tool as Declaration
from antiphon.tools.base import BuiltInTool, ToolServices
from antiphon.tools.code_interpreter.response_code import NAME, ResponseCode
from antiphon.tools.code_interpreter.response_container import ResponseContainer, ToolContainer, list_domains

HARMONY: Final = "python"
SETUP_HINT = "The server's operator enables it with --sandbox, and without --disable-store."
OFFLINE: Final = " There is no access to the internet."
_PARAMETERS: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {
        "code": {
            "type": "string",
            "description": "The Python code, as one would write it into a file.",
            "pattern": "\\S",  # a small model that begins with triple quotes would end with empty code
        }
    },
    "required": ["code"],
    "additionalProperties": False,
}
_FUNCTION: Final = FunctionTool(
    name=NAME,
    description="Runs Python code as a cell of a notebook and returns what it prints, and the value of its last line."
    " Variables, imports and files are kept between calls. Files of the user are in /mnt/data; list that folder to see"
    " their names. Figures of matplotlib are shown to the user. Save files for the user in /mnt/data, and link each in"
    f" the answer as [name](sandbox:/mnt/data/name).{OFFLINE}",
    parameters=_PARAMETERS,
    strict=True,  # small models write code in triple quotes, which is no JSON
)


class ContainerToolKind(BuiltInTool):
    """A tool whose calls run in containers."""

    def __init__(self, services: ToolServices) -> None:
        self._containers = services.containers
        self._limits = services.config.limits

    @property
    def missing(self) -> str:
        return SETUP_HINT if self._containers is None else ""

    def open_container(self, tenant: str, wanted: str | AutoContainer) -> ToolContainer:
        """Return the container of a declaration for one response."""
        assert self._containers is not None
        return ResponseContainer(self._containers, tenant, wanted)


class CodeInterpreter(ContainerToolKind):
    """The code_interpreter tool; see `BuiltInTool`."""

    kind = NAME
    types: tuple[type, ...] = (CodeInterpreterTool,)
    harmony = HARMONY
    recipients: Mapping[str, str] = {HARMONY: NAME}

    def list_functions(self, declared: Declaration) -> tuple[FunctionTool, ...]:
        """Return no function for code that only programs may run, which this server does not run."""
        assert isinstance(declared, CodeInterpreterTool)
        return (describe_network(_FUNCTION, declared.container),) if may_models_call(declared) else ()

    def begin(self, declared: Declaration, tenant: str, include: frozenset[str]) -> ResponseCode:
        assert isinstance(declared, CodeInterpreterTool)
        return ResponseCode(self.open_container(tenant, declared.container), self._limits, include)


def describe_network(function: FunctionTool, container: str | AutoContainer) -> FunctionTool:
    """Name the domains that code can reach in the description, which says that there are none."""
    if not (domains := list_domains(container)):
        return function
    sentence = f" Of the internet, only these hosts can be reached, by HTTP and HTTPS: {', '.join(domains)}."
    return replace(function, description=str(function.description).removesuffix(OFFLINE) + sentence)
