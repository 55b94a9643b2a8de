"""A real SGLang on the CPU of this machine, with a very small model.

    python -m tools.sglang_cpu set-up FOLDER                          about 2 GB
    python -m tools.sglang_cpu serve FOLDER [PORT] [MODEL] [FLAGS…]   FLAGS are passed to SGLang

MODEL is smol, which generates, or embeds: the same model, which then returns vectors. The package of SGLang is built
for GPUs. It contains the complete server, and plain PyTorch can do its computation.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

from tools.engine_install import MODEL_NAME, EngineFolder, list_requirements, main
from tools.random_models import EMBEDDING_MODEL

SGLANG_PACKAGE = "sglang==0.5.23"
TORCHVISION_PACKAGE = "torchvision==0.28.0"  # matches the version of torch; it is imported, but not used
# Prefixes of packages with GPU kernels, and of packages that depend on them.
GPU_PACKAGES = (
    "apache-tvm-ffi", "cuda", "deepseek-recipe", "flash", "humming", "kernels", "nvidia", "nvshmem", "quack", "sgl-",
    "sglang-kernel", "smg", "tilelang", "tml", "torch",
)  # fmt: skip

# The operators of torchvision are built for the GPU version of torch. Without them, these two only have to exist.
_TORCHVISION_SCRIPT = """
import sys, torch

if torch.version.cuda is None:
    for name in ("nms", "qnms"):
        torch.library.define(f"torchvision::{name}", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
"""

# Run by the Python of the new environment, and again by each process that the server starts.
_LAUNCH_SCRIPT = """
import types

# They bind threads to cores and set up shared memory; no package contains SGLang's CPU kernels.
for name, takes in (("init_cpu_threads_env", "str cores"), ("initialize", "int size, int rank")):
    torch.library.define(f"sgl_kernel::{name}", f"({takes}) -> ()")
    torch.library.impl(f"sgl_kernel::{name}", "CompositeExplicitAutograd", lambda *args: None)
# Without a GPU, SGLang looks up this function of vLLM, although it then uses its own.
other, vllm = types.ModuleType("vllm._custom_ops"), types.ModuleType("vllm")
other.rotary_embedding = vllm._custom_ops = other
sys.modules |= {"vllm": vllm, "vllm._custom_ops": other}

if __name__ == "__main__":
    from sglang.launch_server import run_server
    from sglang.srt.server_args import prepare_server_args

    run_server(prepare_server_args(sys.argv[1:]))
"""

# The options of vLLM in vllm_cpu.py under SGLang's names, and none that requires a GPU.
FLAGS = (
    "--host", "127.0.0.1", "--context-length", "4096", "--max-running-requests", "32", "--dtype", "float32",
    "--enable-cache-report", "--tool-call-parser", "hermes", "--grammar-backend", "xgrammar",
    "--constrained-json-disable-any-whitespace", "--random-seed", "0",
    "--device", "cpu", "--attention-backend", "torch_native", "--sampling-backend", "pytorch",
    "--cuda-graph-backend-decode", "disabled", "--cuda-graph-backend-prefill", "disabled",
    "--disable-overlap-schedule", "--max-total-tokens", "16384", "--mem-fraction-static", "0.3",
    "--sleep-on-idle", "--skip-server-warmup",
)  # fmt: skip


class SglangFolder(EngineFolder):
    kind = "sglang"
    models = (MODEL_NAME, EMBEDDING_MODEL)
    prelude = _TORCHVISION_SCRIPT

    def install(self, wheels: Path) -> None:
        self.run_pip("download", "--no-deps", "-d", wheels, SGLANG_PACKAGE)
        wheel = next(wheels.glob("sglang-*.whl"))
        self.run_pip("install", "--no-deps", wheel, TORCHVISION_PACKAGE)
        self.run_pip("install", *list_requirements(wheel, GPU_PACKAGES), "triton")
        (self.path / "launch.py").write_text(_TORCHVISION_SCRIPT + _LAUNCH_SCRIPT)

    def build_command(self, port: int, model: str) -> Sequence["str | Path"]:
        model_flags = ("--port", str(port), "--model-path", self.model, "--served-model-name", model)
        embedding_flags = ("--is-embedding",) if model == EMBEDDING_MODEL else ()
        return [self.bin / "python", self.path / "launch.py", *model_flags, *FLAGS, *embedding_flags]


if __name__ == "__main__":
    sys.exit(main(SglangFolder, __doc__ or "", sys.argv[1:]))
