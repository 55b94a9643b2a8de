"""Code of one response: its container, and the calls that run in it one after the other.

The container is found or made before the model is called, because the item of a call names it from the beginning: the
one that is declared, that of an earlier call in the history, or a new one. A server that takes the response over looks
for the container of the calls so far, and the model is told if it is lost.
"""

import asyncio
from collections.abc import Iterable, Sequence
from contextlib import aclosing
from typing import Final, Literal

from msgspec.structs import replace

from antiphon.core.deltas import Progress, ToolOutputContent
from antiphon.errors import (
    ContainerExpired,
    DeclaredContainerExpired,
    DeclaredContainerUnknown,
    InvalidValue,
    UnknownContainer,
)
from antiphon.limits import Limits
from antiphon.protocol.types.items import CodeImage, CodeInterpreterCall, CodeLogs, InputItem, Message, OutputItem
from antiphon.protocol.types.parts import InputFile, InputImage
from antiphon.protocol.types.tools import AutoContainer, CodeInterpreterTool
from antiphon.tools.base import (
    CodeContainers,
    DeltaSink,
    ModelToolCall,
    ResponseTool,
    Rewriter,
    ToolResult,
    WaitStep,
)
from antiphon.tools.code_interpreter.citations import ContainerFileRewriter, WrittenFiles
from antiphon.tools.code_interpreter.run_output import RunOutput
from antiphon.tools.untrusted_text import MAX_ARGUMENT_LENGTH

NAME: Final = "code_interpreter"
MAX_INPUT_FILES = 20  # of the messages; those of the declaration come on top
_INCLUDE_OUTPUTS = "code_interpreter_call.outputs"
# A call waits for those before it, and the container ends each at the operator's deadline: this is never reached first.
_MAX_SECONDS = 3000.0
OTHER_CONTAINER = (
    "[This ran in another container than the calls before: that one is lost, with its variables and files.]"
)
FOUND = "Its container is still there, with its files; variables may be lost."
LOST = "Its container is lost, with its variables and files."


class ResponseCode(ResponseTool):
    """The code_interpreter tool within one response."""

    max_seconds = _MAX_SECONDS

    def __init__(
        self,
        containers: CodeContainers,
        limits: Limits,
        declared: CodeInterpreterTool,
        tenant: str,
        include: frozenset[str],
    ) -> None:
        self._containers = containers
        self._limits = limits
        self._wanted = declared.container
        self._tenant = tenant
        self._lists_outputs = _INCLUDE_OUTPUTS in include
        self._param = "tools"
        self._previous: list[str] = []  # containers of earlier calls, the latest first
        self._container = ""  # "" until it is resolved
        self._notice = ""  # for the model, with the next output
        self._files = WrittenFiles()
        self._in_order = asyncio.Lock()

    async def prepare(self, param: str, history: Sequence[InputItem]) -> WaitStep:
        self._param, self._previous = f"{param}.container", list_containers(history)
        if isinstance(self._wanted, AutoContainer) and (files := list_files(history)):
            self._wanted = replace(self._wanted, file_ids=[*(self._wanted.file_ids or ()), *files])
        try:
            await self._containers.check(self._tenant, self._wanted, self._param)
        except UnknownContainer as error:
            raise DeclaredContainerUnknown(error.message, param=self._param) from None
        except ContainerExpired as error:
            raise DeclaredContainerExpired(error.message, param=self._param) from None
        return self._resolve

    async def recover(self, output: Sequence[OutputItem]) -> str:
        used = list_containers(output)
        self._previous = [*dict.fromkeys([*used, *self._previous])]
        await self._resolve()
        if used and used[0] != self._container:
            self._files = WrittenFiles()
            return LOST
        return FOUND

    async def run(self, call: ModelToolCall, emit: DeltaSink) -> ToolResult:
        code, output = parse_code(call), RunOutput(self._limits)
        async with self._in_order:
            await self._resolve()
            await emit(Progress(call.key, "interpreting"))
            async with aclosing(self._containers.run(self._tenant, self._container, code)) as events:
                async for event in events:
                    output.add(event)
            output.notice, self._notice = self._notice, ""
            self._files.add(output.files)
        item = self._make_item(code, "failed" if output.is_stopped else "completed", output.to_outputs())
        return ToolResult(item=item, model_output=output.to_model_output())

    def make_failed_result(self, call: ModelToolCall, reason: str) -> ToolResult:
        item = self._make_item(_clean(call.arguments)[:MAX_ARGUMENT_LENGTH], "failed", [])
        return ToolResult(item=item, model_output=f"Error: {reason}")

    def restore_output(self, output: ToolOutputContent) -> None:
        self._files.restore(output)

    def make_rewriter(self, is_last: bool) -> Rewriter | None:
        if not (self._container or self._files):
            return None
        return ContainerFileRewriter(self._files, self._container, self._lists_outputs)

    async def _resolve(self) -> None:
        """Find or make the container, once."""
        if self._container:
            return
        self._container = await self._containers.resolve(self._tenant, self._wanted, self._previous, self._param)
        if self._previous and self._previous[0] != self._container:
            self._notice = OTHER_CONTAINER

    def _make_item(
        self, code: str, status: Literal["completed", "failed"], outputs: list[CodeLogs | CodeImage]
    ) -> CodeInterpreterCall:
        shown = outputs if self._lists_outputs else None
        return CodeInterpreterCall(status=status, container_id=self._container, code=code, outputs=shown)


def list_containers(items: Iterable[InputItem]) -> list[str]:
    """Return the containers of the calls among the items, the latest first."""
    used = [item.container_id for item in items if isinstance(item, CodeInterpreterCall)]
    return [*dict.fromkeys(reversed(used))]


def list_files(items: Iterable[InputItem]) -> list[str]:
    """Return the ids of the files and images that the user has sent last, which code can read."""
    parts = [part for item in items if isinstance(item, Message) for part in item.content]
    sent = [part.file_id for part in parts if isinstance(part, InputFile | InputImage) and part.file_id]
    return [*dict.fromkeys(sent)][-MAX_INPUT_FILES:]


def parse_code(call: ModelToolCall) -> str:
    """Return the code of a call. Raises InvalidValue with a message for the model."""
    code = _clean(call.arguments)
    if call.name != NAME:
        raise InvalidValue(f"There is no function {call.name!r} here.", param="name")
    if len(code) > MAX_ARGUMENT_LENGTH:
        raise InvalidValue(f"The code has more than {MAX_ARGUMENT_LENGTH} characters.", param="code")
    if not code.strip():
        raise InvalidValue("There is no code to run.", param="code")
    return code


def _clean(text: str) -> str:
    """Remove lone surrogates, which cannot be sent."""
    return text.encode("utf-8", "replace").decode()
