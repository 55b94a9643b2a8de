"""A real SGLang on the CPU of this machine, with a very small model.

    python -m tools.sglang_cpu set-up FOLDER                          some 2 GB
    python -m tools.sglang_cpu serve FOLDER [PORT] [MODEL] [FLAGS…]   FLAGS are SGLang's own

MODEL is smol, which generates, or embeds: the same one, made to give vectors.
Its package is made for GPUs. All of the server is in it, and whatever it computes can be computed by plain torch.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

from tools.engine_install import NAME, EngineFolder, main, requirements
from tools.random_models import EMBEDS

SGLANG = "sglang==0.5.23"
VISION = "torchvision==0.28.0"  # that goes with the torch; it is imported, and sees nothing
# Kernels for GPUs, and what is built with them.
GPU = (
    "apache-tvm-ffi", "cuda", "deepseek-recipe", "flash", "humming", "kernels", "nvidia", "nvshmem", "quack", "sgl-",
    "sglang-kernel", "smg", "tilelang", "tml", "torch",
)  # fmt: skip

# Torchvision's operators are made for the torch of GPUs. Without them these two only have to be there.
_VISION = """
import sys, torch

if torch.version.cuda is None:
    for name in ("nms", "qnms"):
        torch.library.define(f"torchvision::{name}", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
"""

# Run by the new environment's Python, and once more by each process that the server starts.
_LAUNCH = """
import types

# They bind threads to cores, and let processes share memory; SGLang's kernels for CPUs are in no package.
for name, takes in (("init_cpu_threads_env", "str cores"), ("initialize", "int size, int rank")):
    torch.library.define(f"sgl_kernel::{name}", f"({takes}) -> ()")
    torch.library.impl(f"sgl_kernel::{name}", "CompositeExplicitAutograd", lambda *given: None)
# On whatever is no GPU it looks for this function of vLLM's, and goes by its own one all the same.
other, vllm = types.ModuleType("vllm._custom_ops"), types.ModuleType("vllm")
other.rotary_embedding = vllm._custom_ops = other
sys.modules |= {"vllm": vllm, "vllm._custom_ops": other}

if __name__ == "__main__":
    from sglang.launch_server import run_server
    from sglang.srt.server_args import prepare_server_args

    run_server(prepare_server_args(sys.argv[1:]))
"""

# What vLLM is started with, in its words; and nothing that only GPUs have.
FLAGS = (
    "--host", "127.0.0.1", "--context-length", "4096", "--max-running-requests", "32", "--dtype", "float32",
    "--enable-cache-report", "--tool-call-parser", "hermes", "--grammar-backend", "xgrammar",
    "--constrained-json-disable-any-whitespace", "--random-seed", "0",
    "--device", "cpu", "--attention-backend", "torch_native", "--sampling-backend", "pytorch",
    "--cuda-graph-backend-decode", "disabled", "--cuda-graph-backend-prefill", "disabled",
    "--disable-overlap-schedule", "--max-total-tokens", "16384", "--mem-fraction-static", "0.3",
    "--sleep-on-idle", "--skip-server-warmup",
)  # fmt: skip


class Folder(EngineFolder):
    kind = "sglang"
    models = (NAME, EMBEDS)
    prelude = _VISION

    def install(self, wheels: Path) -> None:
        self.pip("download", "--no-deps", "-d", wheels, SGLANG)
        wheel = next(wheels.glob("sglang-*.whl"))
        self.pip("install", "--no-deps", wheel, VISION)
        self.pip("install", *requirements(wheel, GPU), "triton")
        (self.path / "launch.py").write_text(_VISION + _LAUNCH)

    def command(self, port: int, model: str) -> Sequence["str | Path"]:
        named = ("--port", str(port), "--model-path", self.model, "--served-model-name", model)
        vectors = ("--is-embedding",) if model == EMBEDS else ()
        return [self.bin / "python", self.path / "launch.py", *named, *FLAGS, *vectors]


if __name__ == "__main__":
    sys.exit(main(Folder, __doc__ or "", sys.argv[1:]))
