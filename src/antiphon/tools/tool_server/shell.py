"""The shell tool of containers on a tool server, which has gpt-oss's function `exec(cmd, timeout)`.

Its text is the standard output of a command. A server that knows more has structured content with the exit_code, stdout
and stderr.
"""

import asyncio
from collections.abc import AsyncGenerator, Iterable
from math import ceil
from typing import Final

from antiphon.protocol.types.items import InputItem, ShellCall
from antiphon.protocol.types.tools import AutoContainer, ContainerReference, FunctionTool
from antiphon.protocol.types.tools import Tool as Declaration
from antiphon.sandbox.base import CodeEvent, CodeResult, PrintedText
from antiphon.sandbox.worker.kernel import SHELL_CELL
from antiphon.tools.hosted_shell.tool import HostedShell
from antiphon.tools.tool_server.server import Json, ServedTool, ServerContainer

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

    def open_container(self, tenant: str, wanted: str | AutoContainer) -> "ShellSession":
        return ShellSession(self, tenant, wanted)


class ShellSession(ServerContainer):
    """Commands of one response."""

    def list_sessions(self, items: Iterable[InputItem]) -> list[str]:
        environments = [item.environment for item in items if isinstance(item, ShellCall)]
        return [one.container_id for one in environments if isinstance(one, ContainerReference)]

    async def run(self, code: str, seconds: float | None = None) -> AsyncGenerator[CodeEvent, None]:
        arguments: Json = {"cmd": ["bash", "-lc", code.removeprefix(SHELL_CELL)]}
        if seconds is not None:
            arguments["timeout"] = ceil(seconds)
        try:
            async with asyncio.timeout(None if seconds is None else ceil(seconds) + _GRACE_SECONDS):
                result = await self.call("exec", arguments)
        except TimeoutError:
            yield CodeResult(outcome="timeout")
            return
        stdout, stderr, exit_code = self._read_output(result)
        yield PrintedText("stdout", stdout)
        yield PrintedText("stderr", stderr)
        yield CodeResult(outcome="completed", exit_code=exit_code)

    def _read_output(self, result: Json) -> tuple[str, str, int]:
        structured = result.get("structuredContent")
        if isinstance(structured, dict) and isinstance(code := structured.get("exit_code"), int):
            return str(structured.get("stdout") or ""), str(structured.get("stderr") or ""), int(code)
        return self.render(result), "", int(bool(result.get("isError")))
