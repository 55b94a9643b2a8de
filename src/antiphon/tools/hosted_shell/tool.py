"""The shell tool in a container: the function that it offers to models."""

from typing import Any, Final

from antiphon.protocol.types.tools import ContainerAuto, ContainerReference, FunctionTool, ShellTool, may_models_call
from antiphon.protocol.types.tools import Tool as Declaration
from antiphon.tools.code_interpreter.tool import OFFLINE, ContainerToolKind, describe_network
from antiphon.tools.hosted_shell.response_shell import MAX_COMMANDS, NAME, ResponseShell

_COUNT: Final = {"type": "integer", "minimum": 0}
_PARAMETERS: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {
        "commands": {
            "type": "array",
            "items": {"type": "string"},
            "minItems": 1,
            "maxItems": MAX_COMMANDS,
            "description": "The commands, each as it is written in a shell.",
        },
        "timeout_ms": {**_COUNT, "description": "Milliseconds that each command may take."},
        "max_output_length": {**_COUNT, "description": "Characters of each command's output that are wanted."},
    },
    "required": ["commands"],
    "additionalProperties": False,
}
_FUNCTION: Final = FunctionTool(
    name=NAME,
    description="Runs commands in a Linux container and returns what each of them wrote, and its exit code. Commands"
    " run one after the other in /mnt/data, each in a new shell: only files are kept, also between calls. Files of the"
    " user are in /mnt/data. Save files for the user there, and link each in the answer as"
    f" [name](sandbox:/mnt/data/name). There is no terminal and no sudo.{OFFLINE}",
    parameters=_PARAMETERS,
    strict=False,
)


class HostedShell(ContainerToolKind):
    """The shell tool of containers; see `BuiltInTool`. The shell of a client is in render/tools/client_tools.py."""

    kind = "hosted_shell"
    types: tuple[type, ...] = (ShellTool,)

    def list_functions(self, declared: Declaration) -> tuple[FunctionTool, ...]:
        """Return no function for a shell that only programs may use, which this server does not run."""
        assert isinstance(declared, ShellTool)
        container = declared.environment if isinstance(declared.environment, ContainerAuto) else ""
        return (describe_network(_FUNCTION, container),) if may_models_call(declared) else ()

    def begin(self, declared: Declaration, tenant: str, include: frozenset[str]) -> ResponseShell:
        assert isinstance(declared, ShellTool)
        environment = declared.environment
        assert isinstance(environment, ContainerAuto | ContainerReference)
        wanted = environment.container_id if isinstance(environment, ContainerReference) else environment
        return ResponseShell(self.open_container(tenant, wanted), environment)
