"""A per-minute limit as a token bucket that refills at a constant rate and holds one minute's worth.

`take` may take more than is available; the bucket is then in debt and grants nothing until the debt is refilled. Time
is passed in, in seconds of any monotonic clock.
"""

MINUTE = 60.0


class TokenBucket:
    """`size` is the capacity, which is also the refill per minute."""

    __slots__ = ("_level", "_updated_at", "size")

    def __init__(self, size: float, now: float) -> None:
        self.size = size
        self._level = size
        self._updated_at = now

    def available(self, now: float) -> float:
        """Return the current level; negative when in debt."""
        size = self.size
        level = self._level + (now - self._updated_at) * size / MINUTE
        return level if level < size else size

    def try_take(self, amount: float, now: float) -> bool:
        size = self.size
        level = self._level + (now - self._updated_at) * size / MINUTE
        if level > size:
            level = size
        if level < amount:
            return False
        self._level = level - amount
        self._updated_at = now
        return True

    def take(self, amount: float, now: float) -> None:
        """Take the amount even if it is not available. A negative amount is a refund."""
        size = self.size
        level = self._level + (now - self._updated_at) * size / MINUTE
        level = (level if level < size else size) - amount
        self._level = level if level < size else size
        self._updated_at = now

    def resize(self, size: float, now: float) -> None:
        """Change the capacity. What was taken before still counts."""
        taken = self.size - self.available(now)
        self.size = size
        self._level = size - taken
        self._updated_at = now
