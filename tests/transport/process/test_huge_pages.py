import platform
import subprocess
import sys
from pathlib import Path

import pytest

from antiphon.transport.process import huge_pages

# What is there stays as it is; how much of it is in large pages is the kernel's to say.
PROGRAM = """
from antiphon.transport.process import huge_pages as pages
held = [bytes([number % 256]) * 1000 for number in range(20_000)]
pages.give_back_what_is_large()
pages.join_what_stays()
assert all(one == bytes([number % 256]) * 1000 for number, one in enumerate(held))
print(next(line.split()[1] for line in open("/proc/self/smaps_rollup") if line.startswith("AnonHugePages")))
"""


@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="not Linux")
def test_what_stays_is_joined_and_stays_as_it_was() -> None:
    said = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True, timeout=150)
    allowed = "[never]" not in Path("/sys/kernel/mm/transparent_hugepage/enabled").read_text()
    assert int(said.stdout) > 0 or not allowed or _is_old()


# Each thread has had much, in pieces that are too small to come from the system one by one.
THREADED = """
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
pages.give_back_what_is_large()
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
def test_what_threads_have_freed_goes_back_but_for_a_little() -> None:
    said = subprocess.run([sys.executable, "-c", THREADED], capture_output=True, text=True, check=True, timeout=150)
    assert float(said.stdout) < 16  # of 48; two arenas keep some, and pieces that threads have just then


# Many small objects; the system is asked for no more than a little.
ROOMY = """
import gc
from antiphon.transport.process import huge_pages as pages
def megabytes():
    return int(open("/proc/self/statm").read().split()[0]) * 4096 / 2**20
gc.disable()
pages.make_room()
before = megabytes()
held = [bytes(200) for _ in range(40_000)]
print(megabytes() - before)
"""


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="not Linux")
def test_what_is_loaded_finds_room_that_was_made_for_it() -> None:
    said = subprocess.run([sys.executable, "-c", ROOMY], capture_output=True, text=True, check=True, timeout=150)
    assert float(said.stdout) < 2  # of 9


def test_where_there_are_no_maps_nothing_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huge_pages, "_MAPS", Path("/nowhere"))
    huge_pages.join_what_stays()


def test_only_memory_of_no_file_is_joined(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
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
    assert [*huge_pages._own_memory()] == [(0xAAAC0000, 0xAAAD0000), (0xFFFF0000, 0xFFFF1000)]


def _is_old() -> bool:
    """A kernel that cannot be told."""
    release = Path("/proc/sys/kernel/osrelease").read_text().split(".")
    return (int(release[0]), int(release[1])) < (6, 1)
