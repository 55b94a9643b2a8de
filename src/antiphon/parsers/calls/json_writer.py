"""JSON that is written while its parts arrive: lists and objects in each other, the outermost an object.

Commas, names and brackets are said only when something follows that needs them; so it can be closed at any time.
"""

from typing import Final

DEEPEST: Final = 64
_CLOSERS: Final = {"[": "]", "(": ")", "{": "}"}


class Level:
    """One bracket. `closer`: as it is written in the source."""

    __slots__ = ("closer", "is_list", "opened", "used")

    def __init__(self, closer: str, is_list: bool) -> None:
        self.closer = closer
        self.is_list = is_list
        self.opened = False
        self.used = False  # there is something in it


class Nest:
    def __init__(self, closer: str) -> None:
        self.levels = [Level(closer, is_list=False)]  # the innermost last
        self._name = ""  # that no value was given yet, as JSON
        self._out: list[str] = []
        self.begun = False  # something was said

    def taken(self) -> str:
        """The JSON since it was last asked for."""
        said = "".join(self._out)
        self._out.clear()
        return said

    def say(self, piece: str) -> None:
        self._out.append(piece)

    def name(self, name: str) -> None:
        """What comes is the value of this, a JSON string."""
        self._name = name

    def name_is_value(self, said: str) -> None:
        """It was no name: these are no pairs, but a set."""
        self._name = ""
        self.levels[-1].is_list = True
        self.item(said)

    def item(self, said: str) -> None:
        level = self.levels[-1]
        if level.used:
            self._out.append(",")
        level.used = True
        if not level.opened:
            self._open(level)
        if self._name:
            self._out.append(self._name + ":")
            self._name = ""
        self._out.append(said)

    def items(self, said: str, name: str) -> None:
        """Several, with commas between them, or none; and the name of the next, or nothing."""
        if said:
            self.item(said)
        self._name = name

    def begin(self, opener: str) -> None:
        self.item("")
        self.levels.append(Level(_CLOSERS[opener], opener != "{"))

    def close(self) -> None:
        level = self.levels.pop()
        if not level.opened:
            self._open(level)
        self._out.append("]" if level.is_list else "}")

    def _open(self, level: Level) -> None:
        level.opened = self.begun = True
        self._out.append("[" if level.is_list else "{")
