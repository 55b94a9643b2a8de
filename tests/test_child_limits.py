"""The limits of a child process that parses untrusted input."""

import subprocess
import sys

PROGRAM = """
import resource
from antiphon.child_limits import limit_resources
limit_resources(3)
print(resource.getrlimit(resource.RLIMIT_CPU), resource.getrlimit(resource.RLIMIT_CORE))
try:
    bytearray(1024**3)
except MemoryError:
    print("no memory")
"""


def test_time_memory_and_core_dumps_of_a_child_are_limited() -> None:
    child = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60)
    assert child.stdout == "(3, 3) (0, 0)\nno memory\n", child.stderr
