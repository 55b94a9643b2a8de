"""The program of the child process: llama.cpp with its own HTTP server on a unix socket, and nothing else.

It reads one line of JSON (a Launch) from stdin, says one line (a Report) on stdout, and lives until stdin ends
or its parent dies.
"""

import ctypes
import os
import signal
import sys
from typing import Any

import msgspec
from msgspec import Struct

PR_SET_PDEATHSIG = 1
SMALL_BATCH_PER_THREAD = 8
LEAST_BATCH = 16
GPU_BATCH = 512
ERRORS_ONLY = 1
PROMPT_CACHE_MIB = 256  # of prompts that lost their slot; llama.cpp's own bound is 8 GiB


class Launch(Struct, frozen=True, kw_only=True):
    model: str
    context: int  # of each slot
    slots: int
    threads: int
    connections: int
    gpu_layers: int | None = None
    batch: int | None = None
    pooling: int | None = None  # it makes embeddings, in this way
    socket: str = ""  # the last two are known only when it is started
    parent: int = 0


class Report(Struct, frozen=True):
    """No error: it listens."""

    error: str = ""
    batch: int = 0


def main() -> None:
    launch = msgspec.json.decode(sys.stdin.buffer.readline(), type=Launch)
    _die_with(launch.parent)
    report = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what native code prints goes to the log
    os.putenv("OMP_WAIT_POLICY", "passive")  # before libgomp is loaded: threads that spin would starve everyone else
    os.umask(0o177)
    try:
        import xllamacpp  # type: ignore[import-untyped]  # no stubs; and only here, after the two lines above

        params = _params(xllamacpp, launch)
        server = xllamacpp.Server(params)
    except (ImportError, OSError, RuntimeError, ValueError) as error:
        _say(report, Report(error=str(error) or type(error).__name__))
        sys.exit(1)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # llama.cpp's own would only end its loop
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _say(report, Report(batch=params.n_batch))
    while sys.stdin.buffer.read(4096):
        pass
    del server
    os._exit(0)


def _die_with(parent: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it died before we could ask for that
        sys.exit(1)


def _say(report: Any, what: Report) -> None:
    report.write(msgspec.json.encode(what) + b"\n")
    report.close()


def _params(xllamacpp: Any, launch: Launch) -> Any:
    params = xllamacpp.CommonParams()
    params.model.path = launch.model
    params.hostnames = [launch.socket]
    params.n_ctx = launch.context * launch.slots
    params.n_parallel = launch.slots
    params.n_threads_http = launch.connections
    params.cpuparams.n_threads = launch.threads
    params.cpuparams_batch.n_threads = launch.threads
    if launch.gpu_layers is not None:
        params.n_gpu_layers = launch.gpu_layers
    if launch.pooling is None:
        params.n_batch = max(launch.batch or _batch(xllamacpp, launch), launch.slots)
        params.n_ubatch = min(params.n_batch, GPU_BATCH)
    else:
        params.embedding = True
        params.pooling_type = xllamacpp.llama_pooling_type(launch.pooling)
        params.n_batch = params.n_ubatch = launch.context  # a text that looks both ways is computed whole
    params.cache_ram_mib = PROMPT_CACHE_MIB
    params.verbosity = ERRORS_ONLY
    params.sse_ping_interval = -1
    params.ui = False
    params.enable_chat_template = False
    return params


def _batch(xllamacpp: Any, launch: Launch) -> int:
    """A batch cannot be interrupted, and up to two pass before a cancel is heard. On CPUs this many tokens keep that
    under a second; GPUs are fast enough for any."""
    kinds = xllamacpp.ggml_backend_dev_type
    gpus = (kinds.GGML_BACKEND_DEVICE_TYPE_GPU, kinds.GGML_BACKEND_DEVICE_TYPE_IGPU)
    if launch.gpu_layers != 0 and any(device["type"] in gpus for device in xllamacpp.get_device_info()):
        return GPU_BATCH
    return min(max(SMALL_BATCH_PER_THREAD * launch.threads, LEAST_BATCH), GPU_BATCH)


if __name__ == "__main__":
    main()
