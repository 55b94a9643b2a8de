"""So much a minute, as a bucket that fills at that pace and holds a minute's worth.

What is taken may turn out to have been more than was there: the bucket is then in debt, and gives nothing until that is
paid off. The time is handed in, in seconds of any clock that does not go back.
"""

MINUTE = 60.0


class Bucket:
    __slots__ = ("_at", "_level", "size")

    def __init__(self, size: float, now: float) -> None:
        self.size = size
        self._level = size
        self._at = now

    def left(self, now: float) -> float:
        """What there is; below zero in debt."""
        size = self.size
        level = self._level + (now - self._at) * size / MINUTE
        return level if level < size else size

    def grab(self, amount: float, now: float) -> bool:
        """Take so much if it is there."""
        size = self.size
        level = self._level + (now - self._at) * size / MINUTE
        if level > size:
            level = size
        if level < amount:
            return False
        self._level = level - amount
        self._at = now
        return True

    def take(self, amount: float, now: float) -> None:
        """Whether or not it is there. Less than nothing is given back."""
        size = self.size
        level = self._level + (now - self._at) * size / MINUTE
        level = (level if level < size else size) - amount
        self._level = level if level < size else size
        self._at = now

    def resize(self, size: float, now: float) -> None:
        """What was taken counts on."""
        taken = self.size - self.left(now)
        self.size = size
        self._level = size - taken
        self._at = now
