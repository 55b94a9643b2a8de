"""Incremental writer for nested JSON lists and objects; the outermost level is an object.

Commas, names and brackets are written only when a value follows that needs them, so the JSON can be closed at any time.
"""

from typing import Final

MAX_DEPTH: Final = 64
_CLOSERS: Final = {"[": "]", "(": ")", "{": "}"}


class JsonLevel:
    """One open bracket. `closer` is the closing bracket in the source syntax."""

    __slots__ = ("closer", "is_list", "opened", "used")

    def __init__(self, closer: str, is_list: bool) -> None:
        self.closer = closer
        self.is_list = is_list
        self.opened = False
        self.used = False  # it contains a value


class JsonWriter:
    """Writes JSON and collects the output."""

    def __init__(self, closer: str) -> None:
        self.levels = [JsonLevel(closer, is_list=False)]  # the innermost last
        self._pending_name = ""  # name whose value has not been written yet, as a JSON string
        self._out: list[str] = []
        self.has_output = False  # a bracket was written

    def take_output(self) -> str:
        """Return the JSON written since the last call."""
        output = "".join(self._out)
        self._out.clear()
        return output

    def write(self, piece: str) -> None:
        self._out.append(piece)

    def set_name(self, name: str) -> None:
        """Set the name of the next value, as a JSON string."""
        self._pending_name = name

    def convert_name_to_value(self, value: str) -> None:
        """Turn the open level into a list: what looked like a name is the first value of a set."""
        self._pending_name = ""
        self.levels[-1].is_list = True
        self.write_item(value)

    def write_item(self, value: str) -> None:
        level = self.levels[-1]
        if level.used:
            self._out.append(",")
        level.used = True
        if not level.opened:
            self._write_opener(level)
        if self._pending_name:
            self._out.append(self._pending_name + ":")
            self._pending_name = ""
        self._out.append(value)

    def open_level(self, opener: str) -> None:
        self.write_item("")
        self.levels.append(JsonLevel(_CLOSERS[opener], opener != "{"))

    def close_level(self) -> None:
        level = self.levels.pop()
        if not level.opened:
            self._write_opener(level)
        self._out.append("]" if level.is_list else "}")

    def _write_opener(self, level: JsonLevel) -> None:
        level.opened = self.has_output = True
        self._out.append("[" if level.is_list else "{")
