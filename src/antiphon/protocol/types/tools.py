"""Tool declarations, as sent and as echoed, with the environments in which code interpreters and shells run commands.

The headers of an MCP server and the domain secrets of a network policy are secrets: they are moved out of the encoded
fields when a declaration is created, so that no echo, log or store contains them. Tools read them from the properties
`credentials` and `secrets`.
"""

from collections.abc import Iterable
from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType, field

from antiphon.protocol.types.filters import Filter
from antiphon.protocol.types.parts import Int64, Tagged

Json = dict[str, Any]
Caller = Literal["direct", "programmatic"]
ContextSize = Literal["low", "medium", "high"]


class DomainSecret(Struct, kw_only=True):
    domain: str
    name: str
    value: str

    def __repr__(self) -> str:
        return f"DomainSecret(domain={self.domain!r}, name={self.name!r}, value=…)"


class NetworkDisabled(Tagged, tag="disabled", kw_only=True): ...


class NetworkAllowlist(Tagged, tag="allowlist", kw_only=True, dict=True):
    allowed_domains: Annotated[list[str], Meta(max_length=100)]
    domain_secrets: list[DomainSecret] | UnsetType = UNSET

    def __post_init__(self) -> None:
        self.__dict__["_secrets"] = [] if self.domain_secrets is UNSET else self.domain_secrets
        self.domain_secrets = UNSET

    @property
    def secrets(self) -> list[DomainSecret]:
        stored: list[DomainSecret] = self.__dict__.get("_secrets", [])
        return stored


NetworkPolicy = NetworkDisabled | NetworkAllowlist
Memory = Literal["1g", "4g", "16g", "64g"]


class SkillReference(Tagged, tag="skill_reference", kw_only=True):
    skill_id: str
    version: str | int | UnsetType = UNSET  # a number or "latest"; the default version if it is not set


class SkillSource(Tagged, tag="base64", kw_only=True):
    media_type: Literal["application/zip"]
    data: str


class InlineSkill(Tagged, tag="inline", kw_only=True):
    name: str
    description: str
    source: SkillSource


ContainerSkill = SkillReference | InlineSkill
ContainerSkills = Annotated[list[ContainerSkill], Meta(max_length=20)]


class AutoContainer(Tagged, tag="auto", kw_only=True):
    file_ids: Annotated[list[str], Meta(max_length=100)] | UnsetType = UNSET
    memory_limit: Memory | UnsetType = UNSET
    network_policy: NetworkPolicy | UnsetType = UNSET


class ContainerAuto(AutoContainer, tag="container_auto", kw_only=True):
    skills: ContainerSkills | UnsetType = UNSET


class LocalEnvironment(Tagged, tag="local", kw_only=True):
    skills: list[dict[str, Any]] | UnsetType = UNSET


class ContainerReference(Tagged, tag="container_reference", kw_only=True):
    container_id: str


class FunctionTool(Tagged, tag="function", kw_only=True):
    name: str
    description: str | UnsetType = UNSET
    parameters: Json | None = None
    strict: bool | None = None
    output_schema: Json | UnsetType = UNSET
    defer_loading: bool | UnsetType = UNSET
    allowed_callers: list[Caller] | UnsetType = UNSET
    asynchronous: bool | UnsetType = field(default=UNSET, name="async")


class TextInput(Tagged, tag="text", kw_only=True):
    """Free-form text as the input of a custom tool."""


class GrammarInput(Tagged, tag="grammar", kw_only=True):
    syntax: Literal["lark", "regex"]
    definition: str


class CustomTool(Tagged, tag="custom", kw_only=True):
    name: str
    description: str | UnsetType = UNSET
    format: TextInput | GrammarInput | UnsetType = UNSET
    defer_loading: bool | UnsetType = UNSET
    allowed_callers: list[Caller] | UnsetType = UNSET
    asynchronous: bool | UnsetType = field(default=UNSET, name="async")


class NamespaceTool(Tagged, tag="namespace", kw_only=True):
    name: str
    description: str = ""
    tools: list[FunctionTool | CustomTool]


class ToolNames(Struct, kw_only=True):
    tool_names: list[str] | UnsetType = UNSET
    read_only: bool | UnsetType = UNSET


class ApprovalRules(Struct, kw_only=True):
    always: ToolNames | UnsetType = UNSET
    never: ToolNames | UnsetType = UNSET


class Credentials(Struct, frozen=True, kw_only=True):
    headers: dict[str, str] = {}
    authorization: str | None = None

    def __repr__(self) -> str:
        return "Credentials(…)"


_NO_CREDENTIALS = Credentials()


class McpTool(Tagged, tag="mcp", dict=True, kw_only=True):
    server_label: str
    server_url: str | UnsetType = UNSET
    connector_id: str | UnsetType = UNSET
    tunnel_id: str | UnsetType = UNSET
    server_description: str | UnsetType = UNSET
    allowed_tools: list[str] | ToolNames | None = None
    require_approval: Literal["always", "never"] | ApprovalRules | UnsetType = UNSET
    defer_loading: bool | UnsetType = UNSET
    allowed_callers: list[Caller] | UnsetType = UNSET
    headers: dict[str, str] | UnsetType = UNSET
    authorization: str | UnsetType = UNSET

    def __post_init__(self) -> None:
        headers = {} if self.headers is UNSET else self.headers
        authorization = None if self.authorization is UNSET else self.authorization
        self.__dict__["_credentials"] = Credentials(headers=headers, authorization=authorization)
        self.headers = self.authorization = UNSET

    @property
    def credentials(self) -> Credentials:
        """The credentials that the client sent for this server; empty in a copy or a stored declaration."""
        stored: Credentials = self.__dict__.get("_credentials", _NO_CREDENTIALS)
        return stored

    def set_credentials(self, credentials: Credentials) -> None:
        """Restore the credentials of a declaration that was loaded from a store."""
        self.__dict__["_credentials"] = credentials


class Location(Struct, kw_only=True):
    type: Literal["approximate"] = "approximate"
    city: str | None = None
    country: str | None = None
    region: str | None = None
    timezone: str | None = None


class WebFilters(Struct, kw_only=True):
    allowed_domains: list[str] | None = None


class WebSearchTool(Tagged, tag="web_search", kw_only=True):
    """Web search. The dated and preview types are aliases of this tool and are echoed as sent."""

    filters: WebFilters | UnsetType = UNSET
    search_context_size: ContextSize | UnsetType = UNSET
    user_location: Location | UnsetType = UNSET
    external_web_access: bool | UnsetType = UNSET
    search_content_types: list[Literal["text", "image"]] | UnsetType = UNSET


class WebSearchTool20250826(WebSearchTool, tag="web_search_2025_08_26", kw_only=True): ...


class WebSearchPreviewTool(WebSearchTool, tag="web_search_preview", kw_only=True): ...


class WebSearchPreviewTool20250311(WebSearchTool, tag="web_search_preview_2025_03_11", kw_only=True): ...


Ranker = Literal["auto", "default-2024-11-15", "none"]  # none: by embeddings only
Weight = Annotated[float, Meta(ge=0)]


class HybridWeights(Struct, kw_only=True):
    embedding_weight: Weight
    text_weight: Weight


class RankingOptions(Struct, kw_only=True):
    ranker: Ranker = "auto"
    score_threshold: Annotated[float, Meta(ge=0, le=1)] = 0.0
    hybrid_search: HybridWeights | UnsetType = UNSET


class FileSearchTool(Tagged, tag="file_search", kw_only=True):
    """A search in vector stores. OpenAI echoes the defaults."""

    vector_store_ids: list[str]
    max_num_results: Annotated[int, Meta(ge=1, le=50)] = 20
    filters: Filter | None = None
    ranking_options: RankingOptions = field(default_factory=RankingOptions)


class CodeInterpreterTool(Tagged, tag="code_interpreter", kw_only=True):
    container: str | AutoContainer = field(default_factory=AutoContainer)
    allowed_callers: list[Caller] | UnsetType = UNSET


class ImageMask(Struct, kw_only=True):
    file_id: str | UnsetType = UNSET
    image_url: str | UnsetType = UNSET


ImageQuality = Literal["low", "medium", "high", "xhigh", "max", "auto"]


class ImageGenerationTool(Tagged, tag="image_generation", kw_only=True):
    """OpenAI's Response shows the values that apply where the request has none, and that one image is made."""

    model: str | UnsetType = UNSET
    n: Annotated[int, Meta(ge=1, le=1)] = 1
    size: str = "auto"
    quality: ImageQuality = "auto"
    background: Literal["transparent", "opaque", "auto"] = "auto"
    output_format: Literal["png", "webp", "jpeg", "gif", "svg"] = "png"
    output_compression: Annotated[int, Meta(ge=0, le=100)] = 100
    moderation: Literal["auto", "low"] = "auto"
    partial_images: Annotated[int, Meta(ge=0, le=3)] | UnsetType = UNSET
    input_fidelity: Literal["high", "low"] | UnsetType = UNSET
    input_image_mask: ImageMask | UnsetType = UNSET
    action: Literal["generate", "edit", "auto"] | UnsetType = UNSET
    complexity: Literal["low", "medium", "high"] | UnsetType = UNSET
    frame_count: Int64 | UnsetType = UNSET
    frame_duration_ms: Int64 | UnsetType = UNSET
    svg: Json | UnsetType = UNSET


ScreenSide = Annotated[int, Meta(ge=1, le=65_536)]


class ComputerTool(Tagged, tag="computer", kw_only=True): ...


class ComputerUsePreviewTool(Tagged, tag="computer_use_preview", kw_only=True):
    display_width: ScreenSide
    display_height: ScreenSide
    environment: Literal["windows", "mac", "linux", "ubuntu", "browser"]


class LocalShellTool(Tagged, tag="local_shell", kw_only=True): ...


class ShellTool(Tagged, tag="shell", kw_only=True):
    """A shell of the client, or one in a container, which the server runs."""

    environment: ContainerAuto | LocalEnvironment | ContainerReference | UnsetType = UNSET
    allowed_callers: list[Caller] | UnsetType = UNSET

    @property
    def is_hosted(self) -> bool:
        return isinstance(self.environment, ContainerAuto | ContainerReference)


class ApplyPatchTool(Tagged, tag="apply_patch", kw_only=True):
    allowed_callers: list[Caller] | UnsetType = UNSET


class ToolSearchTool(Tagged, tag="tool_search", kw_only=True):
    execution: Literal["server", "client"] | UnsetType = UNSET
    description: str | UnsetType = UNSET
    parameters: Json | UnsetType = UNSET


class ProgrammaticTool(Tagged, tag="programmatic_tool_calling", kw_only=True): ...


_SearchTool = (
    WebSearchTool | WebSearchTool20250826 | WebSearchPreviewTool | WebSearchPreviewTool20250311 | FileSearchTool
)
_ComputerTool = ComputerTool | ComputerUsePreviewTool | LocalShellTool | ShellTool | ApplyPatchTool
_CodeTool = CodeInterpreterTool | ImageGenerationTool | ToolSearchTool | ProgrammaticTool
Tool = FunctionTool | CustomTool | NamespaceTool | McpTool | _SearchTool | _ComputerTool | _CodeTool
_RestrictedTool = FunctionTool | CustomTool | McpTool | ShellTool | ApplyPatchTool | CodeInterpreterTool


def has_auto_container(tools: Iterable[Tool]) -> bool:
    """Return whether one of the tools runs in a container of the conversation, which has the files of the input."""
    runners = [tool for tool in tools if isinstance(tool, CodeInterpreterTool | ShellTool)]
    wanted = [tool.container if isinstance(tool, CodeInterpreterTool) else tool.environment for tool in runners]
    return any(isinstance(container, AutoContainer) for container in wanted)


def may_models_call(tool: _RestrictedTool) -> bool:
    """Return whether models themselves may call a tool, and not programs alone."""
    return tool.allowed_callers is UNSET or "direct" in tool.allowed_callers
