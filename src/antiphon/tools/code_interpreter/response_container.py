"""The container of a tool within one response, and the files that code has written in it.

The container is known before the model is called, because the item of a call names it from the beginning: the one that
is declared, that of an earlier call in the history, or a new one, which is made for the first call. A server that takes
the response over looks for the container of the calls so far, and the model is told if it is lost. The tools of a
response share a container.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Iterable, Sequence

from msgspec import UNSET
from msgspec.structs import replace

from antiphon.core.deltas import ToolOutputContent
from antiphon.errors import (
    ContainerExpired,
    DeclaredContainerExpired,
    DeclaredContainerUnknown,
    NotFound,
    SandboxDisabled,
    SandboxUnavailable,
    UnknownContainer,
)
from antiphon.ids import new_id
from antiphon.protocol.types.items import CodeInterpreterCall, InputItem, Message, OutputItem, ShellCall
from antiphon.protocol.types.parts import InputFile, InputImage, MessagePart
from antiphon.protocol.types.tools import (
    AutoContainer,
    ContainerAuto,
    ContainerReference,
    NetworkAllowlist,
    NetworkDisabled,
)
from antiphon.sandbox.base import CodeEvent
from antiphon.tools.base import CodeContainers, ResponseTool, WaitStep, WrittenFile
from antiphon.tools.code_interpreter.citations import WrittenFiles, list_cited_files

MAX_PREVIOUS = 8  # containers of earlier calls that are tried
MAX_INPUT_FILES = 20  # of the messages; those of the declaration come on top
# A call waits for those before it, each of which the container ends at the operator's deadline: this bounds their sum.
MAX_SECONDS = 3000.0
OTHER_CONTAINER = (
    "[This ran in another container than the calls before: that one is lost, with its variables and files.]"
)
FOUND = "Its container is still there, with its files; variables may be lost."
LOST = "Its container is lost, with its variables and files."


class ToolContainer(ABC):
    """The place where the calls of a tool run. Hold `in_order` while code runs: calls run one after the other."""

    cites = True  # no other tool cites its files

    def __init__(self) -> None:
        self.id = ""  # "" until it is known
        self.files = WrittenFiles()
        self.in_order = asyncio.Lock()

    @property
    @abstractmethod
    def max_seconds(self) -> float:
        """Maximum duration of a call, in seconds."""

    @abstractmethod
    async def prepare(self, param: str, history: Sequence[InputItem]) -> WaitStep | None:
        """Check the declaration, whose container is at `param`. See `ResponseTool`."""

    @abstractmethod
    async def recover(self, output: Sequence[OutputItem]) -> str:
        """Continue with the container of the calls so far. See `ResponseTool`."""

    async def make(self) -> None:
        """Make the container, if it is a new one."""
        return

    @abstractmethod
    def run(self, code: str, seconds: float | None = None) -> AsyncGenerator[CodeEvent | WrittenFile, None]:
        """Run code, or a command (`make_shell_cell`). See `CodeContainers`."""

    def take_notice(self) -> str:
        """Return what the model is told with the next output, once."""
        return ""


class ResponseContainer(ToolContainer):
    """A container of this server."""

    max_seconds = MAX_SECONDS

    def __init__(self, containers: CodeContainers, tenant: str, wanted: str | AutoContainer) -> None:
        super().__init__()
        self._containers = containers
        self._tenant = tenant
        self.wanted = wanted
        self._param = "tools"
        self._previous: list[str] = []  # containers of earlier calls, the latest first
        self._cited: list[WrittenFile] = []  # files that earlier answers have cited
        self._sent: list[InputFile] = []  # files of the input that are not in the container yet
        self._is_made = False  # it exists, with the files of the declaration
        self._notice = ""
        self.first: ResponseContainer | None = None  # of another tool, to be shared

    async def prepare(self, param: str, history: Sequence[InputItem]) -> WaitStep | None:
        self._param, self._previous, self._cited = param, list_containers(history), list_cited_files(history)
        if isinstance(self.wanted, str):
            self._use(self.wanted)
        else:
            self._sent = list_sent_files(history)
            if files := list_files(history):
                self.wanted = replace(self.wanted, file_ids=[*(self.wanted.file_ids or ()), *files])
        try:
            await self._containers.check(self._tenant, self.wanted, self._param)
        except UnknownContainer as error:
            raise DeclaredContainerUnknown(error.message, param=self._param) from None
        except ContainerExpired as error:
            raise DeclaredContainerExpired(error.message, param=self._param) from None
        except SandboxDisabled as error:
            error.param = param.partition(".")[0]
            raise
        if isinstance(self.wanted, AutoContainer) and (self._previous or self.first is not None):
            return self.find
        if not self.id:
            self._use(None)
        return None

    async def recover(self, output: Sequence[OutputItem]) -> str:
        if not (used := list_containers(output)):
            return ""
        self._previous, self.id = [*dict.fromkeys([*used, *self._previous])], ""
        try:
            await self.find()
            if used[0] == self.id:
                return FOUND
        except (NotFound, SandboxUnavailable):  # it was declared: no other one is used, and further calls fail
            self._use(used[0])
        self.files.clear()
        return LOST

    async def find(self) -> None:
        """Find the container, once."""
        if self.id:
            return
        if self.first is None or not self._fits(self.first):
            wanted = self.wanted
            if isinstance(wanted, AutoContainer) and wanted.network_policy is UNSET:
                wanted = replace(wanted, network_policy=NetworkDisabled())  # an earlier one may have a network
            self._use(await self._containers.find(self._tenant, wanted, self._previous, self._param))
            return
        await self.first.find()
        self._use(self.first.id)
        self._is_made = False

    def _fits(self, first: "ResponseContainer") -> bool:
        """Return whether the container of another tool can be this one: as it is wanted, and no other one is named."""
        if isinstance(self.wanted, str):
            return self.wanted == first.wanted
        other = first.wanted if isinstance(first.wanted, AutoContainer) else AutoContainer()
        has_network = list_domains(self.wanted) == list_domains(other)
        return has_network and self.wanted.memory_limit in (UNSET, other.memory_limit)

    def _use(self, found: str | None) -> None:
        self.id, self._is_made = found or new_id("cntr_auto"), found is not None
        if self._previous and self._previous[0] != self.id:
            self._notice = OTHER_CONTAINER
        self.files.add([file for file in self._cited if file.container_id == self.id])

    async def make(self) -> None:
        """Make the container, if it is a new one, and put the files of the input into it."""
        await self.find()
        if not self._is_made:
            await self._make()
        if self._sent:
            await self._containers.add_files(self._tenant, self.id, self._sent)
            self._sent = []

    async def _make(self) -> None:
        if self.first is not None and self.first.id == self.id:
            await self.first.make()
            await self._containers.find(self._tenant, self.wanted, [self.id], self._param)  # it gets the files
        else:
            assert isinstance(self.wanted, AutoContainer)
            await self._containers.make(self._tenant, self.wanted, self.id, self._param)
        self._is_made = True

    def run(self, code: str, seconds: float | None = None) -> AsyncGenerator[CodeEvent | WrittenFile, None]:
        return self._containers.run(self._tenant, self.id, code, seconds)

    def take_notice(self) -> str:
        notice, self._notice = self._notice, ""
        return notice


class ContainerTool(ResponseTool):
    """A tool of one response whose calls run in a container."""

    container: ToolContainer

    @property
    def max_seconds(self) -> float:
        return self.container.max_seconds

    async def recover(self, output: Sequence[OutputItem]) -> str:
        return await self.container.recover(output)

    def restore_output(self, output: ToolOutputContent) -> None:
        self.container.files.restore(output)


def share_container(tools: Iterable[ResponseTool]) -> None:
    """Let the tools of a response use one container, unless different ones are declared."""
    used = [tool.container for tool in tools if isinstance(tool, ContainerTool)]
    found = [container for container in used if isinstance(container, ResponseContainer)]
    first = min(found, key=_rank, default=None)
    for container in found:
        container.files, container.in_order = found[0].files, found[0].in_order
        container.cites = container is found[0]
        container.first = None if container is first else first


def _rank(container: ResponseContainer) -> int:
    """A container that is named comes first, then one that is made with skills."""
    wanted = container.wanted
    return 0 if isinstance(wanted, str) else 1 if isinstance(wanted, ContainerAuto) and wanted.skills else 2


def list_containers(items: Iterable[InputItem]) -> list[str]:
    """Return the containers of the calls among the items, the latest first."""
    places = [item.environment if isinstance(item, ShellCall) else item for item in items]
    used = [one.container_id for one in places if isinstance(one, CodeInterpreterCall | ContainerReference)]
    return [*dict.fromkeys(reversed(used))][:MAX_PREVIOUS]


def list_domains(wanted: str | AutoContainer) -> list[str]:
    """Return the domains that code in a declared container may reach. Those of one that is named are not known."""
    policy = wanted.network_policy if isinstance(wanted, AutoContainer) else UNSET
    return sorted(policy.allowed_domains) if isinstance(policy, NetworkAllowlist) else []


def list_files(items: Iterable[InputItem]) -> list[str]:
    """Return the ids of the files and images that the user has sent last, which code can read."""
    sent = [part.file_id for part in _list_parts(items) if isinstance(part, InputFile | InputImage) and part.file_id]
    return [*dict.fromkeys(sent)][-MAX_INPUT_FILES:]


def list_sent_files(items: Iterable[InputItem]) -> list[InputFile]:
    """Return the files with inline data that the user has sent last."""
    return [part for part in _list_parts(items) if isinstance(part, InputFile) and part.file_data][-MAX_INPUT_FILES:]


def _list_parts(items: Iterable[InputItem]) -> list[MessagePart]:
    return [part for item in items if isinstance(item, Message) for part in item.content]
