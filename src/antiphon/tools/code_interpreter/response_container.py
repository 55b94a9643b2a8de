"""The container of a tool within one response: found or made once, and the files that code has written in it.

The container is found or made before the model is called, because the item of a call names it from the beginning: the
one that is declared, that of an earlier call in the history, or a new one. A server that takes the response over looks
for the container of the calls so far, and the model is told if it is lost. Two tools of a response share a container.
"""

import asyncio
from collections.abc import AsyncGenerator, Iterable, Sequence

from msgspec.structs import replace

from antiphon.core.deltas import ToolOutputContent
from antiphon.errors import ContainerExpired, DeclaredContainerExpired, DeclaredContainerUnknown, UnknownContainer
from antiphon.protocol.types.items import CodeInterpreterCall, InputItem, Message, OutputItem, ShellCall
from antiphon.protocol.types.parts import InputFile, InputImage
from antiphon.protocol.types.tools import AutoContainer, ContainerReference
from antiphon.sandbox.base import CodeEvent
from antiphon.tools.base import CodeContainers, ResponseTool, WaitStep, WrittenFile
from antiphon.tools.code_interpreter.citations import WrittenFiles

MAX_INPUT_FILES = 20  # of the messages; those of the declaration come on top
# A call waits for those before it, and the container ends each at the operator's deadline: this is never reached first.
MAX_SECONDS = 3000.0
OTHER_CONTAINER = (
    "[This ran in another container than the calls before: that one is lost, with its variables and files.]"
)
FOUND = "Its container is still there, with its files; variables may be lost."
LOST = "Its container is lost, with its variables and files."


class ResponseContainer:
    """Hold `in_order` while code runs: calls of a container run one after the other."""

    def __init__(self, containers: CodeContainers, tenant: str, wanted: str | AutoContainer) -> None:
        self._containers = containers
        self._tenant = tenant
        self._wanted = wanted
        self._param = "tools"
        self._previous: list[str] = []  # containers of earlier calls, the latest first
        self._first: ResponseContainer | None = None
        self._notice = ""
        self.id = ""  # "" until it is resolved
        self.files = WrittenFiles()
        self.in_order = asyncio.Lock()

    def follow(self, first: "ResponseContainer") -> None:
        """Be the same container as that of another tool, unless a different one is declared."""
        self._first, self.files, self.in_order = first, first.files, first.in_order

    @property
    def is_follower(self) -> bool:
        return self._first is not None

    async def prepare(self, param: str, history: Sequence[InputItem]) -> WaitStep:
        """Check the declaration, which is at `param`. See `ResponseTool`."""
        self._param, self._previous = param, list_containers(history)
        if isinstance(self._wanted, AutoContainer) and (files := list_files(history)):
            self._wanted = replace(self._wanted, file_ids=[*(self._wanted.file_ids or ()), *files])
        try:
            await self._containers.check(self._tenant, self._wanted, self._param)
        except UnknownContainer as error:
            raise DeclaredContainerUnknown(error.message, param=self._param) from None
        except ContainerExpired as error:
            raise DeclaredContainerExpired(error.message, param=self._param) from None
        return self.resolve

    async def recover(self, output: Sequence[OutputItem]) -> str:
        used = list_containers(output)
        self._previous = [*dict.fromkeys([*used, *self._previous])]
        await self.resolve()
        if used and used[0] != self.id:
            self.files.clear()
            return LOST
        return FOUND

    async def resolve(self) -> None:
        """Find or make the container, once."""
        if self.id:
            return
        previous = self._previous
        if self._first is not None:
            await self._first.resolve()
            previous = [self._first.id, *previous]
        self.id = await self._containers.resolve(self._tenant, self._wanted, previous, self._param)
        if self._previous and self._previous[0] != self.id:
            self._notice = OTHER_CONTAINER

    def run(self, code: str, seconds: float | None = None) -> AsyncGenerator[CodeEvent | WrittenFile, None]:
        return self._containers.run(self._tenant, self.id, code, seconds)

    def take_notice(self) -> str:
        """Return what the model is told with the next output, once."""
        notice, self._notice = self._notice, ""
        return notice


class ContainerTool(ResponseTool):
    """A tool of one response whose calls run in a container."""

    max_seconds = MAX_SECONDS
    container: ResponseContainer

    async def recover(self, output: Sequence[OutputItem]) -> str:
        return await self.container.recover(output)

    def restore_output(self, output: ToolOutputContent) -> None:
        self.container.files.restore(output)


def share_container(tools: Iterable[ResponseTool]) -> None:
    """Let the tools of a response use one container, unless different ones are declared."""
    found = [tool.container for tool in tools if isinstance(tool, ContainerTool)]
    for container in found[1:]:
        container.follow(found[0])


def list_containers(items: Iterable[InputItem]) -> list[str]:
    """Return the containers of the calls among the items, the latest first."""
    places = [item.environment if isinstance(item, ShellCall) else item for item in items]
    used = [one.container_id for one in places if isinstance(one, CodeInterpreterCall | ContainerReference)]
    return [*dict.fromkeys(reversed(used))]


def list_files(items: Iterable[InputItem]) -> list[str]:
    """Return the ids of the files and images that the user has sent last, which code can read."""
    parts = [part for item in items if isinstance(item, Message) for part in item.content]
    sent = [part.file_id for part in parts if isinstance(part, InputFile | InputImage) and part.file_id]
    return [*dict.fromkeys(sent)][-MAX_INPUT_FILES:]
