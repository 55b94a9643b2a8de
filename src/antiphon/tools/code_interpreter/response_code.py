"""Code of one response: the calls run in its container, one after the other."""

from collections.abc import Sequence
from contextlib import aclosing
from typing import Final, Literal

from antiphon.core.deltas import Progress
from antiphon.errors import AntiphonError, InvalidValue
from antiphon.limits import Limits
from antiphon.protocol.types.items import CodeImage, CodeInterpreterCall, CodeLogs, InputItem
from antiphon.tools.base import DeltaSink, ModelToolCall, Rewriter, ToolResult, WaitStep
from antiphon.tools.code_interpreter.citations import ContainerFileRewriter
from antiphon.tools.code_interpreter.response_container import ContainerTool, ToolContainer
from antiphon.tools.code_interpreter.run_output import RunOutput
from antiphon.tools.untrusted_text import MAX_ARGUMENT_LENGTH, replace_surrogates

NAME: Final = "code_interpreter"
_INCLUDE_OUTPUTS = "code_interpreter_call.outputs"


class ResponseCode(ContainerTool):
    """The code_interpreter tool within one response."""

    def __init__(self, container: ToolContainer, limits: Limits, include: frozenset[str]) -> None:
        self.container = container
        self._limits = limits
        self._lists_outputs = _INCLUDE_OUTPUTS in include

    async def prepare(self, param: str, history: Sequence[InputItem]) -> WaitStep | None:
        return await self.container.prepare(f"{param}.container", history)

    async def run(self, call: ModelToolCall, emit: DeltaSink) -> ToolResult:
        code, output, container = parse_code(call), RunOutput(self._limits), self.container
        async with container.in_order:
            await container.make()
            await emit(Progress(call.key, "interpreting"))
            async with aclosing(container.run(code)) as events:
                async for event in events:
                    output.add(event)
            output.notice = container.take_notice()
            container.files.add(output.files)
        item = self._make_item(code, output.is_stopped, output.to_outputs())
        return ToolResult(item=item, model_output=output.to_model_output())

    def make_failed_result(self, call: ModelToolCall, failure: AntiphonError) -> ToolResult:
        item = self._make_item(replace_surrogates(call.arguments)[:MAX_ARGUMENT_LENGTH], True, [])
        return ToolResult(item=item, model_output=f"Error: {failure.message}")

    def _make_item(self, code: str, has_failed: bool, outputs: list[CodeLogs | CodeImage]) -> CodeInterpreterCall:
        """Make the item of a call, with its outputs if the client includes them."""
        status: Literal["completed", "failed"] = "failed" if has_failed else "completed"
        shown = outputs if self._lists_outputs else None
        return CodeInterpreterCall(status=status, container_id=self.container.id, code=code, outputs=shown)

    def make_rewriter(self, is_last: bool) -> Rewriter | None:
        if not (self.container.id or self.container.files):
            return None
        return ContainerFileRewriter(self.container.files, self.container.id, self._lists_outputs)


def parse_code(call: ModelToolCall) -> str:
    """Return the code of a call. Raises InvalidValue with a message for the model."""
    code = replace_surrogates(call.arguments)
    if call.name != NAME:
        raise InvalidValue(f"There is no function {call.name!r} here.", param="name")
    if len(code) > MAX_ARGUMENT_LENGTH:
        raise InvalidValue(f"The code has more than {MAX_ARGUMENT_LENGTH} characters.", param="code")
    if not code.strip():
        raise InvalidValue("There is no code to run.", param="code")
    return code
