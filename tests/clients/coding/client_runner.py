"""Runs clients as their users do: by a shell's command, in a home of their own, with no way out but loopback."""

import contextlib
import os
import shlex
import signal
import subprocess
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from msgspec import Struct

from tests.support.npm import binary, installed

HERE = Path(__file__).parent
NOBODY = "http://127.0.0.1:9"  # who wants to go out finds this closed
_SYSTEM = (Path("/usr/local/bin"), Path("/usr/bin"), Path("/bin"))


class Ran(Struct, frozen=True):
    code: int
    out: str
    err: str

    def __str__(self) -> str:
        """For a test that fails."""
        return f"exit code {self.code}\n{self.out}\n{self.err}"


class Client:
    """A home with a project in it, where its commands run, and what npm has installed on the path."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.project = home / "project"
        self.project.mkdir()
        self._modules = installed(HERE) / "node_modules"
        (self.project / "node_modules").symlink_to(self._modules)
        self._path = [*self._modules.glob("opencode-*/bin"), self._modules / ".bin", binary().parent, *_SYSTEM]

    def has(self, program: str) -> bool:
        return any((folder / program).exists() for folder in self._path)

    def write(self, path: str, text: str) -> None:
        """`path`: from home."""
        file = self.home / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def run(self, command: str, more: Mapping[str, str] = MappingProxyType({}), *, seconds: float = 60.0) -> Ran:
        """All that it has started ends with it: some clients do not mind being asked to."""
        with subprocess.Popen(
            ["/bin/sh", "-c", command], cwd=self.project, env={**self._environment(), **more}, start_new_session=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        ) as process:  # fmt: skip
            try:
                out, err = process.communicate(timeout=seconds)
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
        return Ran(process.returncode, out, err)

    def script(self, source: str, *arguments: str) -> Ran:
        """A program of its own for node."""
        self.write("project/script.mjs", source)
        return self.run(shlex.join(["node", "script.mjs", *arguments]))

    def _environment(self) -> dict[str, str]:
        proxies = {"HTTP_PROXY": NOBODY, "HTTPS_PROXY": NOBODY, "ALL_PROXY": NOBODY, "NO_PROXY": "127.0.0.1"}
        return {"HOME": str(self.home), "PATH": os.pathsep.join(map(str, self._path)), "NO_COLOR": "1", **proxies}
