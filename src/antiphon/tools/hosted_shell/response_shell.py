"""Commands of one response: those of a call run in its container in their order, each in a shell of its own."""

from collections.abc import Sequence
from contextlib import aclosing
from typing import Final

import msgspec

from antiphon.core.deltas import CommandDone
from antiphon.core.shell_output import render_shell_output
from antiphon.errors import AntiphonError, InvalidValue, UnsupportedParameter
from antiphon.protocol.types.items import (
    ExitOutcome,
    InputItem,
    ShellAction,
    ShellCall,
    ShellCallOutput,
    ShellOutput,
    TimeoutOutcome,
)
from antiphon.protocol.types.tools import ContainerAuto, ContainerReference
from antiphon.sandbox.base import CodeResult, PrintedText, StreamName, make_shell_cell
from antiphon.tools.base import DeltaSink, ModelToolCall, Rewriter, ToolResult, WaitStep, WrittenFile
from antiphon.tools.code_interpreter.citations import ContainerFileRewriter, describe_files, escape_notes
from antiphon.tools.code_interpreter.response_container import ContainerTool, ToolContainer
from antiphon.tools.code_interpreter.run_output import MAX_PRINTED_LENGTH, shorten
from antiphon.tools.untrusted_text import decode_arguments, replace_surrogates

NAME: Final = "shell"
MAX_COMMANDS: Final = 16
KILLED_CODE: Final = 137  # of a command that was killed with all processes of its container: 128 + SIGKILL
FAILED_CODE: Final = 126  # of a command that could not be started
KILLED = "[All processes of the container were killed ({reason}).]"
DROPPED = "[{count:,} more bytes of output were dropped.]"
UNLISTED = "[{count:,} more files were written.]"

_decoder: Final = msgspec.json.Decoder(ShellAction)


class ResponseShell(ContainerTool):
    """The shell tool of a container within one response."""

    def __init__(self, container: ToolContainer, environment: ContainerAuto | ContainerReference) -> None:
        self.container = container
        self._environment = environment

    async def prepare(self, param: str, history: Sequence[InputItem]) -> WaitStep | None:
        param = f"{param}.environment"
        if isinstance(self._environment, ContainerReference):
            return await self.container.prepare(f"{param}.container_id", history)
        if self._environment.skills and not param.startswith("tools["):
            raise UnsupportedParameter("Skills are declared in 'tools' of the request.", param=f"{param}.skills")
        return await self.container.prepare(param, history)

    def start_item(self, call: ModelToolCall) -> ShellCall:
        """Return the item of a call. One that cannot be run has no commands."""
        try:
            action = parse_action(call)
        except InvalidValue:
            action = ShellAction(commands=[])
        reference = ContainerReference(container_id=self.container.id)
        return ShellCall(call_id="", status="completed", action=action, environment=reference)

    async def run(self, call: ModelToolCall, emit: DeltaSink) -> ToolResult:
        action, outputs, files = parse_action(call), list[ShellOutput](), dict[str, WrittenFile]()
        async with self.container.in_order:
            await self.container.make()
            for command in action.commands:
                outputs.append(await self._run_command(command, action, files))
                await emit(CommandDone(call.key, outputs[-1]))
            notice = self.container.take_notice()
            self.container.files.add(files.values())
        lines = [notice, *[escape_notes(render_shell_output(one)) for one in outputs]]
        text = "\n".join(filter(None, [*lines, *describe_files([*files.values()])]))
        return ToolResult(item=ShellCallOutput(call_id="", status="completed", output=outputs), model_output=text)

    def make_failed_result(self, call: ModelToolCall, failure: AntiphonError) -> ToolResult:
        item = ShellCallOutput(call_id="", status="incomplete", output=[])
        return ToolResult(item=item, model_output=f"Error: {failure.message}")

    def make_rewriter(self, is_last: bool) -> Rewriter | None:
        """Return what cites the files, unless that of the code interpreter does, which knows them too."""
        if not self.container.cites or not self.container.files:
            return None
        return ContainerFileRewriter(self.container.files, self.container.id, lists_outputs=False)

    async def _run_command(self, command: str, action: ShellAction, files: dict[str, WrittenFile]) -> ShellOutput:
        printed: dict[StreamName, list[str]] = {"stdout": [], "stderr": []}
        result = CodeResult(outcome="killed")
        seconds = action.timeout_ms / 1000 if action.timeout_ms else None
        async with aclosing(self.container.run(make_shell_cell(command), seconds)) as events:
            async for event in events:
                if isinstance(event, PrintedText):
                    printed[event.stream].append(event.text)
                elif isinstance(event, WrittenFile):
                    files[event.file_id] = event
                elif isinstance(event, CodeResult):
                    result = event
        limit = MAX_PRINTED_LENGTH if action.max_output_length is None else action.max_output_length
        stdout, stderr = limit_output("".join(printed["stdout"]), "".join(printed["stderr"]), limit)
        notes = [DROPPED.format(count=result.dropped)] if result.dropped else []
        notes += [UNLISTED.format(count=result.unlisted)] if result.unlisted else []
        if result.outcome == "killed":
            notes.append(KILLED.format(reason=result.reason))
        return ShellOutput(
            stdout=stdout, stderr="\n".join(filter(None, [stderr, *notes])), outcome=find_outcome(result)
        )


def parse_action(call: ModelToolCall) -> ShellAction:
    """Return the commands of a call. Raises InvalidValue with a message for the model."""
    action = decode_arguments(_decoder, NAME, replace_surrogates(call.arguments))
    if not 0 < len(action.commands) <= MAX_COMMANDS:
        raise InvalidValue(f"A call has between 1 and {MAX_COMMANDS} commands.", param="commands")
    if min(action.timeout_ms or 0, action.max_output_length or 0) < 0:
        raise InvalidValue("timeout_ms and max_output_length are not negative.", param="timeout_ms")
    return action


def limit_output(stdout: str, stderr: str, limit: int) -> tuple[str, str]:
    """Cut the output of a command to about `limit` characters. Errors get at least half of them."""
    room = min(len(stderr), max(limit // 2, limit - len(stdout)))
    return shorten(stdout, limit - room), shorten(stderr, room)


def find_outcome(result: CodeResult) -> ExitOutcome | TimeoutOutcome:
    if "timeout" in (result.outcome, result.reason):
        return TimeoutOutcome()
    if result.outcome == "killed":
        return ExitOutcome(exit_code=KILLED_CODE)
    return ExitOutcome(exit_code=FAILED_CODE if result.exit_code is None else result.exit_code)
