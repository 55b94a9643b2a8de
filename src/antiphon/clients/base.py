"""Descriptions of clients: the properties of a server that their files contain, and those files."""

from msgspec import Struct

from antiphon.protocol.types.operations.models import ModelObject

KEY_VARIABLE = "ANTIPHON_API_KEY"
_ASSUMED_CONTEXT = 32_768  # tokens, for clients that require a number, if the engine does not report it
_MAX_OUTPUT = 16_384  # tokens that a client reserves for an answer, if the operator has set no maximum

ValuePath = tuple[str, ...]  # names from the root of a file to a value


class ModelFacts(Struct, frozen=True, kw_only=True):
    """A model as clients describe it. The answer gets a quarter of the context unless the operator limits it."""

    name: str
    context: int
    output: int
    inputs: list[str]
    sees: bool
    calls: bool
    reasons: bool
    efforts: list[str]


class ServerConnection(Struct, frozen=True, kw_only=True):
    """`url`: of the server, without /v1. `models`: those that generate text; the first is the default."""

    url: str
    models: list[ModelObject]
    key: str = ""  # empty: the server needs none

    @property
    def model(self) -> str:
        return self.models[0].id

    def list_facts(self) -> list[ModelFacts]:
        return [_describe(model) for model in self.models]


def _describe(model: ModelObject) -> ModelFacts:
    context, sees = model.context_length or _ASSUMED_CONTEXT, "image" in model.input_modalities
    return ModelFacts(
        name=model.id,
        context=context,
        output=min(model.max_output_tokens or _MAX_OUTPUT, context // 4),
        inputs=["text", "image"] if sees else ["text"],
        sees=sees,
        calls=model.tools is not False,
        reasons=bool(model.reasoning),
        efforts=model.reasoning_efforts,
    )


class ClientFile(Struct, frozen=True):
    """A file of a client. `template` has the text of a new one; in others the values at `paths` are set.

    In JSON a name selects a member of an object, or the element of a list with this `name`. In YAML the marked elements
    of the template are added below the only path.
    """

    template: str
    folder: str  # "." is the current one
    name: str
    paths: tuple[ValuePath, ...] = ((),)
    variable: str = ""  # of the environment, which replaces the folder
    mac_folder: str = ""
    windows_folder: str = ""  # below %APPDATA%
    other_name: str = ""  # of a file that is used instead, if it exists
    only_with_key: bool = False

    @property
    def kind(self) -> str:
        return self.template.rpartition(".")[2]

    @property
    def path(self) -> str:
        return self.name if self.folder == "." else f"{self.folder}/{self.name}"


class ClientSetup(Struct, frozen=True):
    """One client. `user_agents`: parts of the header by which its requests are recognized."""

    title: str
    page: str  # of the documentation
    user_agents: tuple[str, ...]
    files: tuple[ClientFile, ...]
    hint: str = ""  # what remains to be done
    question: tuple[str, ...] = ()  # command that asks the model the question that follows
    reads_key: bool = False  # from the environment: the key is in none of its files

    def sends(self, user_agent: str) -> bool:
        return any(part.lower() in user_agent.lower() for part in self.user_agents)

    def list_files(self, connection: ServerConnection) -> list[ClientFile]:
        return [file for file in self.files if connection.key or not file.only_with_key]
