"""Interfaces of the tools that the server runs for a model.

    BuiltInTool    one per kind for the lifetime of the server: web_search, …; listed in the registry
    ResponseTool   one per kind and response: runs its calls until it is closed

A tool runs at most once per call, under a deadline, concurrently with others. An exception becomes an item with an
error and the response continues, so tools need no catch-all of their own. Data from servers and pages is untrusted, and
so is the call.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from typing import Protocol

from msgspec import Struct

from antiphon.config import Config
from antiphon.core.deltas import Delta, ServerItem, StartedItem, ToolOutputContent
from antiphon.core.file_search import SearchHit, SearchRequest
from antiphon.core.image_generation import ImageRequest, ImageResult, PartialImage, SourceImage
from antiphon.core.skills import OfferedSkill
from antiphon.egress import EgressClient
from antiphon.errors import AntiphonError
from antiphon.protocol.types.items import InputItem, OutputItem
from antiphon.protocol.types.parts import InputFile, InputImage
from antiphon.protocol.types.tools import AutoContainer, FunctionTool
from antiphon.protocol.types.tools import Tool as Declaration
from antiphon.sandbox.base import CodeEvent

DeltaSink = Callable[[Delta], Awaitable[None]]  # receives Progress and other deltas while the tool runs
# loads images of a tenant, each with the field of the request that has it, which an error names
LoadImages = Callable[[str, Sequence[tuple[InputImage, str]]], Awaitable[Sequence[SourceImage]]]
WaitStep = Callable[[], Awaitable[None]]  # returns when the model may be called, or raises the error of the response


class SearchBackend(Protocol):
    """Searches vector stores. A failure is raised, never reported as an empty result."""

    async def check_store(self, tenant: str, store: str) -> None:
        """Raise NotFound or BadRequest if the tenant has no such store or it is expired."""

    async def wait_indexed(self, tenant: str, stores: Sequence[str], seconds: float) -> bool:
        """Wait until no file of the stores is being indexed. Returns False if that takes longer."""

    async def search(self, tenant: str, request: SearchRequest) -> list[SearchHit]:
        """Return the best hits, best first."""


class ImageBackend(Protocol):
    """Makes and edits images. All methods raise AntiphonError, within a deadline."""

    def check(self, request: ImageRequest, param: str) -> None:
        """Raise a BadRequest that names the field below `param` which no image service can honour."""

    def generate(self, tenant: str, request: ImageRequest) -> AsyncGenerator[PartialImage | ImageResult, None]:
        """Yield previews where the service sends them, and the result last; closing it cancels the work.

        Every image is within the limits of the server and of the type that its options name.
        """


class WrittenFile(Struct, frozen=True, kw_only=True):
    """A file of a container that code has written, which clients retrieve from /v1/containers by its id."""

    file_id: str  # cfile_…; it stays the same when the file is changed
    container_id: str
    path: str  # /mnt/data/…
    size: int  # in bytes
    is_figure: bool = False  # the file of the Figure that was yielded before it

    @property
    def filename(self) -> str:
        return self.path.rpartition("/")[2]


class CodeContainers(Protocol):
    """The containers of tenants, in which code is run. All methods raise AntiphonError, within a deadline.

    A container that does not exist is an UnknownContainer, one that has expired a ContainerExpired. A container that
    was lost with the sandbox process that it belonged to has expired too.
    """

    async def check(self, tenant: str, wanted: str | AutoContainer, param: str) -> None:
        """Raise what `resolve` would raise for this declaration, which is at `param`, and make nothing."""

    async def find(self, tenant: str, wanted: str | AutoContainer, previous: Sequence[str], param: str) -> str | None:
        """Return the id of the container that a declaration means, which is in use from now on.

        That is the container that it names. If it names none, it is the first of `previous`, the containers of earlier
        calls, that is alive and has the memory and the network that are wanted, or None. The files and skills of
        the declaration are in it.
        """

    async def find_skills(
        self, tenant: str, wanted: str | AutoContainer, param: str
    ) -> tuple[str | AutoContainer, Sequence[OfferedSkill]]:
        """Return the skills of a declaration, or of the container that it names, and the declaration with the versions
        that it means now. Raises InvalidValue for one that does not exist.
        """

    async def make(self, tenant: str, wanted: AutoContainer, container_id: str, param: str) -> None:
        """Make a container with the files and skills of the declaration, under a new id."""

    async def add_files(self, tenant: str, container_id: str, files: Sequence[InputFile]) -> None:
        """Put files with inline data into a container, unless it has them. Their names begin with a digest."""

    def run(
        self, tenant: str, container_id: str, code: str, seconds: float | None = None
    ) -> AsyncGenerator[CodeEvent | WrittenFile, None]:
        """Run code after earlier calls of the container; closing it interrupts the code.

        It is stopped after `seconds`, and at the operator's deadline in any case.

        Each Figure is followed by its file, unless there was no room for it. The other files that the code has created
        or changed come before the last event, which is the CodeResult.
        """


class ToolServices(Struct, frozen=True, kw_only=True):
    """Services of the server that tools use."""

    config: Config
    egress: EgressClient
    search: SearchBackend | None = None  # None: there are no vector stores
    containers: CodeContainers | None = None  # None: code is not run on this server
    images: ImageBackend | None = None  # None: no image service is configured
    load_images: LoadImages | None = None  # set if `images` is


class ModelToolCall(Struct, frozen=True, kw_only=True):
    """A complete call by a model. Name and arguments come from the model and are unchecked."""

    key: int
    id: str  # id of its item; effects happen once per id
    name: str  # as declared, not the name offered to the model
    namespace: str | None = None  # label of an MCP server
    arguments: str
    approval_id: str | None = None  # id of the request that approved it


class ToolResult(Struct, frozen=True, kw_only=True):
    """The result of a call."""

    item: ServerItem  # without an id; its status is success or failure
    model_output: ToolOutputContent = ""  # output for the model, if it differs from the item's


class Rewriter(Protocol):
    """Rewrites the output of a model: citation markers become annotations. One per turn."""

    reads_marks: bool  # it removes citation markers from the text

    def feed(self, deltas: Sequence[Delta]) -> list[Delta]: ...

    def finish(self) -> list[Delta]:
        """Return the deltas that were held back."""


class ResponseTool(Protocol):
    """A tool within one response. By default its calls do not depend on each other, and it changes no output."""

    @property
    def max_seconds(self) -> float:
        """Maximum duration of a call, in seconds."""

    def start_item(self, call: ModelToolCall) -> StartedItem | None:
        """Return the initial item of a call with complete arguments; None if they are streamed (MCP, code)."""
        return None

    async def run(self, call: ModelToolCall, emit: DeltaSink) -> ToolResult:
        """Run the call. Raises an AntiphonError with a message for the model and the client."""

    def make_failed_result(self, call: ModelToolCall, failure: AntiphonError) -> ToolResult:
        """Return the result of a call that was not run, or whose outcome is unknown; `failure` says why."""

    async def prepare(self, param: str, history: Sequence[InputItem]) -> WaitStep | None:
        """Check what the declaration refers to before anything is written; `param` is its position in the request.

        `history`: the items before the output of the response. Returns the step that the response waits for before the
        model is called; None if there is none.
        """
        return None

    def restore_output(self, output: ToolOutputContent) -> None:
        """Restore the output of a call that another server ran, so that later output is consistent with it."""
        return

    async def recover(self, output: Sequence[OutputItem]) -> str:
        """Continue a response that another server began, after its outputs were restored.

        `output` has all items of the response. Returns what the model is told about this tool's calls that were
        running, besides that they were interrupted.
        """
        return ""

    def make_rewriter(self, is_last: bool) -> Rewriter | None:
        """Return a rewriter for the next turn of the model; None if the output is not changed.

        `is_last`: no other rewriter follows that could know the markers that this one does not know.
        """
        return None

    async def close(self) -> None:
        return


class BuiltInTool(Protocol):
    """A kind of tool that comes with the server. By default all options of its declarations have an effect."""

    kind: str  # key in the registry
    types: tuple[type, ...]  # the declaration types that it serves
    harmony: str = ""  # name of the tool in gpt-oss (browser, python)
    recipients: Mapping[str, str] = {}  # function names of gpt-oss: browser.search → web_search

    @property
    def missing(self) -> str:
        """Instructions for configuring the tool; "" if it is configured, and therefore offered."""

    def list_functions(self, declared: Declaration) -> tuple[FunctionTool, ...]:
        """Return the functions that a model is offered for this declaration, under their own names.

        An empty result means that the declaration cannot be honoured; it is treated like an unconfigured tool.
        """

    def list_ignored(self, declared: Declaration) -> list[str]:
        """Return the options of this declaration that have no effect, such as `tools.user_location.city`."""
        return []

    def begin(self, declared: Declaration, tenant: str, include: frozenset[str]) -> ResponseTool:
        """Create the tool for one response. `include`: optional fields that the client requested in items."""

    async def close(self) -> None:
        return
