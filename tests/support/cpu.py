"""What a piece of work costs: CPU time of this process, without collecting what other tests left behind.

A full collection looks at everything that is alive. In a process that has run a thousand tests that takes
longer than many a piece of work that happens to set it off, so what was there before is kept out of it.
"""

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from time import process_time

_COUNTED = 0.002  # seconds in which a quiet machine counts to a hundred thousand


@dataclass
class Spent:
    seconds: float = 0.0


@contextmanager
def cpu_time() -> Iterator[Spent]:
    """The seconds are known when the block is left."""
    spent = Spent()
    gc.freeze()
    begun = process_time()
    try:
        yield spent
    finally:
        spent.seconds = process_time() - begun
        gc.unfreeze()


def spent_on(work: Callable[[], object]) -> float:
    with cpu_time() as spent:
        work()
    return spent.seconds


def slowness() -> float:
    """How many times slower than a quiet machine this one is just now; 1 if it is as quick or quicker."""
    return max(1.0, spent_on(_count) / _COUNTED)


def _count() -> None:
    for _ in range(100_000):
        pass


def least_spent_on(work: Callable[[], object], tries: int = 3) -> float:
    """Of a few tries, since a busy machine can make one of them dear."""
    return min(spent_on(work) for _ in range(tries))
