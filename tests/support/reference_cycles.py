"""What a piece of work leaves behind in cycles, which only a search for them would find.

What was there before is kept out of the search: the event loop of another test may be let go of at any moment.
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def errors_in_cycles() -> Iterator[list[BaseException]]:
    """The list is filled when the block is left."""
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
