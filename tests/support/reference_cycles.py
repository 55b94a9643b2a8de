"""Detection of exceptions that a piece of code leaves in reference cycles, which only the garbage collector would find.

Existing objects are frozen before the search: the event loop of another test may become garbage at any moment.
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collect_cyclic_errors() -> Iterator[list[BaseException]]:
    """Yield a list that receives the exceptions found in cycles when the block ends."""
    found: list[BaseException] = []
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield found
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        found += [one for one in gc.garbage if isinstance(one, BaseException)]
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
        gc.unfreeze()
