"""Program of the child process: llama.cpp with its own HTTP server on a Unix socket, and nothing else."""

import os
import sys
from typing import Any, ClassVar

from antiphon.engines.embedded import child

CPU_BATCH_PER_THREAD = 8
MIN_BATCH = 16
GPU_BATCH = 512
MIN_IMAGE_BATCH = 512  # some models need all tokens of an image in one batch
LOG_ERRORS_ONLY = 1
PROMPT_CACHE_MIB = 256  # for prompts that lost their slot; llama.cpp's default is 8 GiB


class LlamaCppLaunch(child.LaunchSpec, frozen=True, kw_only=True):
    program: ClassVar[str] = "antiphon.engines.llamacpp.child"
    connections: int
    gpu_layers: int | None = None
    batch: int | None = None
    projector: str = ""  # file for images; empty: the model takes none
    image_marker: str = ""  # stands for an image in the text of a prompt


def main() -> None:
    launch = child.read_launch(LlamaCppLaunch)
    output = child.take_stdout()
    os.umask(0o177)
    os.putenv("LLAMA_MEDIA_MARKER", launch.image_marker)  # otherwise random
    os.putenv("PATH", os.devnull)  # llama.cpp would decode what is no image with ffmpeg
    os.putenv("OMP_WAIT_POLICY", "passive")  # before libgomp is loaded: spinning threads would starve other processes
    try:
        import xllamacpp  # type: ignore[import-untyped]  # no stubs; imported only here, after the environment is set

        server = xllamacpp.Server(_build_params(xllamacpp, launch))
    except (ImportError, OSError, RuntimeError, ValueError) as error:
        child.write_report(output, _explain(error))
        sys.exit(1)
    child.set_signals()  # llama.cpp's own handler of SIGTERM would only end its loop
    child.write_report(output, "")
    child.wait_for_end()
    del server
    os._exit(0)


def _explain(error: Exception) -> str:
    text = str(error) or type(error).__name__
    return f"{text}: install the package libgomp1, or libgomp" if text.startswith("libgomp") else text


def _build_params(xllamacpp: Any, launch: LlamaCppLaunch) -> Any:
    params = xllamacpp.CommonParams()
    params.model.path = launch.model
    if launch.projector:
        params.mmproj.path = launch.projector
        params.mmproj_use_gpu = launch.gpu_layers != 0
    params.hostnames = [launch.socket]
    params.n_ctx = launch.context * launch.slots
    params.n_parallel = launch.slots
    params.n_threads_http = launch.connections
    params.cpuparams.n_threads = launch.threads
    params.cpuparams_batch.n_threads = launch.threads
    if launch.gpu_layers is not None:
        params.n_gpu_layers = launch.gpu_layers
    if launch.pooling is None:
        minimum = max(launch.slots, MIN_IMAGE_BATCH if launch.projector else 0)
        params.n_batch = max(launch.batch or _default_batch(xllamacpp, launch), minimum)
        params.n_ubatch = min(params.n_batch, GPU_BATCH)
    else:
        params.embedding = True
        params.pooling_type = xllamacpp.llama_pooling_type(launch.pooling)
        # bidirectional attention needs the complete text in one batch
        params.n_batch = params.n_ubatch = launch.context
    params.cache_ram_mib = PROMPT_CACHE_MIB
    params.verbosity = LOG_ERRORS_ONLY
    params.sse_ping_interval = -1
    params.ui = False
    params.enable_chat_template = False
    return params


def _default_batch(xllamacpp: Any, launch: LlamaCppLaunch) -> int:
    """Return the batch size.

    A batch cannot be interrupted, and up to two are computed before a cancellation takes effect. On CPUs this size
    keeps that below a second; GPUs are fast enough for any size.
    """
    device_types = xllamacpp.ggml_backend_dev_type
    gpus = (device_types.GGML_BACKEND_DEVICE_TYPE_GPU, device_types.GGML_BACKEND_DEVICE_TYPE_IGPU)
    if launch.gpu_layers != 0 and any(device["type"] in gpus for device in xllamacpp.get_device_info()):
        return GPU_BATCH
    return min(max(CPU_BATCH_PER_THREAD * launch.threads, MIN_BATCH), GPU_BATCH)


if __name__ == "__main__":
    main()
