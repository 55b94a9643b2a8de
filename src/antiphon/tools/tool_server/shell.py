"""The shell tool of containers on a tool server, which has gpt-oss's function `exec(cmd, timeout)`.

Its text is the standard output of a command. A server that knows more has structured content with the exit_code, stdout
and stderr.
"""

import asyncio
from collections.abc import Iterable, Sequence
from math import ceil
from typing import Final

from antiphon.core.deltas import CommandDone
from antiphon.core.shell_output import render_shell_output
from antiphon.protocol.types.items import (
    ExitOutcome,
    InputItem,
    ShellAction,
    ShellCall,
    ShellCallOutput,
    ShellOutput,
    TimeoutOutcome,
)
from antiphon.protocol.types.tools import ContainerAuto, ContainerReference, FunctionTool, ShellTool
from antiphon.protocol.types.tools import Tool as Declaration
from antiphon.tools.base import DeltaSink, ModelToolCall, ToolResult
from antiphon.tools.code_interpreter.run_output import MAX_PRINTED_LENGTH
from antiphon.tools.hosted_shell.response_shell import (
    limit_output,
    make_failed_output,
    make_shell_call,
    parse_action,
)
from antiphon.tools.hosted_shell.tool import HostedShell
from antiphon.tools.tool_server.server import Json, ServedTool, ServerSession, ServerTool

_DESCRIPTION: Final = (
    "Runs commands in a shell on a Linux machine, one after the other, and returns what each of them wrote, and its"
    " exit code."
)
_GRACE_SECONDS: Final = 1.0  # for a server that stops a command at its deadline itself


class ServedShell(ServedTool, HostedShell):
    """The shell tool of containers; see `BuiltInTool`."""

    server_name = "container"
    labels = frozenset({"container", "shell"})

    def list_functions(self, declared: Declaration) -> tuple[FunctionTool, ...]:
        return self.describe(super().list_functions(declared), _DESCRIPTION)

    def begin(  # type: ignore[override]  # both are tools of the protocol
        self, declared: Declaration, tenant: str, include: frozenset[str]
    ) -> "ServerShell":
        assert isinstance(declared, ShellTool)
        assert isinstance(declared.environment, ContainerAuto | ContainerReference)
        return ServerShell(ServerSession(self, tenant), declared.environment)


class ServerShell(ServerTool):
    """The shell tool of containers within one response."""

    def __init__(self, session: ServerSession, environment: ContainerAuto | ContainerReference) -> None:
        self.session = session
        self._environment = environment

    async def prepare(self, param: str, history: Sequence[InputItem]) -> None:
        if isinstance(self._environment, ContainerReference):
            self.session.refuse_container(self._environment.container_id, f"{param}.environment.container_id")
        else:
            self.session.refuse_container(self._environment, f"{param}.environment")
        self.session.use_latest(self.list_sessions(history))

    def list_sessions(self, items: Iterable[InputItem]) -> list[str]:
        environments = [item.environment for item in items if isinstance(item, ShellCall)]
        return [one.container_id for one in environments if isinstance(one, ContainerReference)]

    def start_item(self, call: ModelToolCall) -> ShellCall:
        return make_shell_call(call, self.session.id)

    async def run(self, call: ModelToolCall, emit: DeltaSink) -> ToolResult:
        action, outputs = parse_action(call), list[ShellOutput]()
        async with self.session.in_order:
            for command in action.commands:
                outputs.append(await self._run_command(command, action))
                await emit(CommandDone(call.key, outputs[-1]))
        text = "\n".join(map(render_shell_output, outputs))
        return ToolResult(item=ShellCallOutput(call_id="", status="completed", output=outputs), model_output=text)

    def make_failed_result(self, call: ModelToolCall, reason: str) -> ToolResult:
        return make_failed_output(reason)

    async def _run_command(self, command: str, action: ShellAction) -> ShellOutput:
        arguments: Json = {"cmd": ["bash", "-lc", command]}
        if seconds := ceil((action.timeout_ms or 0) / 1000):
            arguments["timeout"] = seconds
        try:
            async with asyncio.timeout(seconds + _GRACE_SECONDS if seconds else None):
                result = await self.session.call("exec", arguments)
        except TimeoutError:
            return ShellOutput(stdout="", stderr="", outcome=TimeoutOutcome())
        stdout, stderr, code = self._read_output(result)
        limit = MAX_PRINTED_LENGTH if action.max_output_length is None else action.max_output_length
        stdout, stderr = limit_output(stdout, stderr, limit)
        return ShellOutput(stdout=stdout, stderr=stderr, outcome=ExitOutcome(exit_code=code))

    def _read_output(self, result: Json) -> tuple[str, str, int]:
        structured = result.get("structuredContent")
        if isinstance(structured, dict) and isinstance(code := structured.get("exit_code"), int):
            return str(structured.get("stdout") or ""), str(structured.get("stderr") or ""), int(code)
        return self.session.render(result), "", int(bool(result.get("isError")))
