"""Common part of the programs of child processes: their parameters, and their reports to the parent.

A child reads one line of JSON (a `LaunchSpec`) from stdin and writes one line to stdout: the error as a JSON string,
empty if its server accepts connections. It runs until stdin is closed or its parent exits.
"""

import ctypes
import os
import signal
import sys
from contextlib import suppress
from typing import BinaryIO, ClassVar, TypeVar

import msgspec
from msgspec import Struct

PR_SET_PDEATHSIG = 1
# Vector stores are indexed in the background: answers come first. Models that generate keep the priority of the server:
# with a lower one its event loop waits as long, and other programs take their CPU time.
EMBEDDING_NICENESS = 10


class LaunchSpec(Struct, frozen=True, kw_only=True):
    """Model and parameters to load; the parent sends them as JSON."""

    program: ClassVar[str]  # module of the child
    model: str
    context: int  # of one generation
    slots: int
    threads: int
    pooling: int | None = None  # pooling type of a model that embeds or ranks; None: the model generates
    socket: str = ""  # `socket` and `parent` are filled in when the process is started
    parent: int = 0


Launch = TypeVar("Launch", bound=LaunchSpec)


def read_launch(kind: type[Launch]) -> Launch:
    """Read the parameters. From now on the process exits with its parent."""
    launch = msgspec.json.decode(sys.stdin.buffer.readline(), type=kind)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != launch.parent:  # the parent exited before the signal was set up
        sys.exit(1)
    if launch.pooling is not None:
        _lower_priority(EMBEDDING_NICENESS)
    return launch


def _lower_priority(niceness: int) -> None:
    """Let the server go first, also where the kernel divides CPU time among sessions (sched(7), autogroup): there the
    niceness of a process counts only within its session, and the child leads its own.
    """
    os.nice(niceness)
    with suppress(OSError), open("/proc/self/autogroup", "w") as file:
        file.write(str(niceness))


def take_stdout() -> BinaryIO:
    """Return stdout, for the report. What native code writes to it goes to the log from now on."""
    output = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    return output


def write_report(output: BinaryIO, error: str) -> None:
    output.write(msgspec.json.encode(error) + b"\n")
    output.close()


def set_signals() -> None:
    """Die of SIGTERM, whatever native code installed, and leave SIGINT to the parent."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def wait_for_end() -> None:
    """Wait until the parent closes stdin."""
    while sys.stdin.buffer.read(4096):
        pass
