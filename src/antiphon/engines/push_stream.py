"""Streams of chunks that are pushed to their consumer."""

from collections.abc import Awaitable, Callable

from antiphon.core.prompt import Chunk

# returns an awaitable that must finish before the next call, or None
ChunkSink = Callable[[list[Chunk]], Awaitable[None] | None]


class PushStream(list[Chunk]):
    """Empty list that `generate` may yield after the first one; the remaining chunks can be pushed out of it.

    Pulling each list costs a wake-up of the consumer, which is as expensive as everything else together. Consumers that
    do not support pushing skip it as the empty list that it is, and keep iterating.
    """

    async def push_to(self, sink: ChunkSink) -> None:
        """Call `sink` with each list from the callback that received it, and await what `sink` returns.

        `sink` must not raise. This returns at the end of the stream or after a failure; continue to iterate to get the
        failure.
        """
        raise NotImplementedError
