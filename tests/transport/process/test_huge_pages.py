"""Memory tuning of the server process: malloc, the reserved heap, and huge pages. Measured in child processes."""

import platform
import subprocess
import sys
from pathlib import Path

import pytest

from antiphon.transport.process import huge_pages

# All objects must be unchanged. The kernel decides how many huge pages it uses, and reports them.
COLLAPSE_PROGRAM = """
from antiphon.transport.process import huge_pages as pages
held = [bytes([number % 256]) * 1000 for number in range(20_000)]
pages.tune_malloc()
pages.collapse_heap()
assert all(one == bytes([number % 256]) * 1000 for number, one in enumerate(held))
print(next(line.split()[1] for line in open("/proc/self/smaps_rollup") if line.startswith("AnonHugePages")))
"""


@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="not Linux")
def test_the_heap_is_collapsed_into_huge_pages_and_unchanged() -> None:
    result = subprocess.run(
        [sys.executable, "-c", COLLAPSE_PROGRAM], capture_output=True, text=True, check=True, timeout=150
    )
    allowed = "[never]" not in Path("/sys/kernel/mm/transparent_hugepage/enabled").read_text()
    assert int(result.stdout) > 0 or not allowed or _is_old_kernel()


# Each thread allocates and frees blocks that are too small to be mapped one by one.
THREADS_PROGRAM = """
import threading
from antiphon.transport.process import huge_pages as pages
def megabytes():
    return int(open("/proc/self/statm").read().split()[1]) * 4096 / 2**20
def work():
    with alone:
        held = [bytes([1]) * 500_000 for _ in range(12)]
        del held
    together.wait()
    over.wait()
pages.tune_malloc()
alone, together, over = threading.Lock(), threading.Barrier(9), threading.Event()
before = megabytes()
threads = [threading.Thread(target=work) for _ in range(8)]
for thread in threads:
    thread.start()
together.wait()
print(megabytes() - before)
over.set()
"""


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="not Linux")
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="not GNU's malloc")
def test_memory_freed_by_threads_is_returned_to_the_system() -> None:
    result = subprocess.run(
        [sys.executable, "-c", THREADS_PROGRAM], capture_output=True, text=True, check=True, timeout=150
    )
    assert float(result.stdout) < 16  # of 48 MiB; two arenas retain some, and so do the blocks in use


# Allocates many small objects, which must hardly grow the address space.
RESERVE_PROGRAM = """
import gc
from antiphon.transport.process import huge_pages as pages
def megabytes():
    return int(open("/proc/self/statm").read().split()[0]) * 4096 / 2**20
gc.disable()
pages.reserve_heap()
before = megabytes()
held = [bytes(200) for _ in range(40_000)]
print(megabytes() - before)
"""


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="not Linux")
def test_small_objects_fit_into_the_reserved_heap() -> None:
    result = subprocess.run(
        [sys.executable, "-c", RESERVE_PROGRAM], capture_output=True, text=True, check=True, timeout=150
    )
    assert float(result.stdout) < 2  # of 9 MiB


def test_nothing_is_collapsed_without_proc_maps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huge_pages, "_MAPS", Path("/nowhere"))
    huge_pages.collapse_heap()


def test_only_anonymous_mappings_are_collapsed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    maps = tmp_path / "maps"
    maps.write_text(
        "aaaa0000-aaab0000 r-xp 00000000 fe:00 1 /usr/bin/python3\n"
        "aaab0000-aaac0000 rw-p 00000000 fe:00 1 /usr/bin/python3\n"
        "aaac0000-aaad0000 rw-p 00000000 00:00 0 [heap]\n"
        "ffff0000-ffff1000 rw-p 00000000 00:00 0 \n"
        "ffff1000-ffff2000 r--p 00000000 00:00 0 \n"
        "ffff2000-ffff3000 rw-p 00000000 00:00 0 [stack]\n"
    )
    monkeypatch.setattr(huge_pages, "_MAPS", maps)
    assert [*huge_pages._anonymous_mappings()] == [(0xAAAC0000, 0xAAAD0000), (0xFFFF0000, 0xFFFF1000)]


def _is_old_kernel() -> bool:
    """Whether the kernel lacks MADV_COLLAPSE, which Linux 6.1 introduced."""
    release = Path("/proc/sys/kernel/osrelease").read_text().split(".")
    return (int(release[0]), int(release[1])) < (6, 1)
