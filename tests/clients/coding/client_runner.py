"""Runs clients as their users do: with a shell command, in a home directory of their own, with network access to
loopback only.
"""

import contextlib
import os
import shlex
import signal
import subprocess
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from msgspec import Struct

from tests.support.npm import install_packages, node_binary
from tests.support.paths import ROOT

HERE = Path(__file__).parent
CLOSED_PROXY = "http://127.0.0.1:9"  # closed port as proxy: external requests fail
_SYSTEM = (Path("/usr/local/bin"), Path("/usr/bin"), Path("/bin"))


class CommandResult(Struct, frozen=True):
    code: int
    out: str
    err: str

    def __str__(self) -> str:
        """Return a summary for assertion messages."""
        return f"exit code {self.code}\n{self.out}\n{self.err}"


class Client:
    """A home directory with a project in which commands run, and the installed packages on the PATH."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.project = home / "project"
        self.project.mkdir()
        self._modules = install_packages(HERE) / "node_modules"
        (self.project / "node_modules").symlink_to(self._modules)
        bundled = [*self._modules.glob("opencode-*/bin"), self._modules / ".bin", node_binary().parent]
        self._path = [*bundled, *_SYSTEM, ROOT / "build" / "clients" / "bin"]

    def has_program(self, program: str) -> bool:
        return any((folder / program).exists() for folder in self._path)

    def write_file(self, path: str, text: str) -> None:
        """Write a file; `path` is relative to the home directory."""
        file = self.home / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def run(
        self, command: str, variables: Mapping[str, str] = MappingProxyType({}), *, seconds: float = 60.0
    ) -> CommandResult:
        """Run a shell command, then kill its process group: some clients ignore SIGTERM."""
        with subprocess.Popen(
            ["/bin/sh", "-c", command],
            cwd=self.project,
            env={**self._environment(), **variables},
            start_new_session=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            try:
                out, err = process.communicate(timeout=seconds)
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
        return CommandResult(process.returncode, out, err)

    def run_script(self, source: str, *arguments: str) -> CommandResult:
        """Run a JavaScript module with node."""
        self.write_file("project/script.mjs", source)
        return self.run(shlex.join(["node", "script.mjs", *arguments]))

    def _environment(self) -> dict[str, str]:
        proxies = {
            "HTTP_PROXY": CLOSED_PROXY,
            "HTTPS_PROXY": CLOSED_PROXY,
            "ALL_PROXY": CLOSED_PROXY,
            "NO_PROXY": "127.0.0.1",
        }
        return {"HOME": str(self.home), "PATH": os.pathsep.join(map(str, self._path)), "NO_COLOR": "1", **proxies}
