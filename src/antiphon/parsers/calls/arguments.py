"""Incremental reader for the JSON arguments of one call, including arguments encoded as a JSON string.

Missing arguments, null and an empty string all become {}. A string with other content stays a string.
"""

from typing import Final, Protocol

from antiphon.parsers.json_repair import MAX_ESCAPE_REPAIRS, WHITESPACE, JsonRepair, JsonStringDecoder, JsonStringRepair

NO_ARGUMENTS: Final = "{}"


class ArgumentStream(Protocol):
    """Receives the arguments of a call once they have begun."""

    @property
    def is_finished(self) -> bool: ...

    @property
    def is_done(self) -> bool: ...

    @property
    def can_wait(self) -> bool:
        """Whether further input may be buffered until something is closed."""

    def can_pass(self, text: str) -> bool:
        """Whether the text lies entirely inside a string and can be passed through unchanged."""

    def feed(self, text: str, at: int = 0) -> tuple[str, int]: ...


class ArgumentsReader:
    """Reads the arguments of one call, as an object or as a string of JSON."""

    def __init__(self) -> None:
        self._value: JsonRepair | _QuotedArguments | None = None
        self._has_output = False
        self.stream: ArgumentStream | None = None  # set once the arguments have begun; all its output belongs to them

    @property
    def is_done(self) -> bool:
        return self._value is not None and self._value.is_done

    @property
    def is_broken(self) -> bool:
        return self._value is not None and self._value.is_broken

    def feed(self, text: str, at: int) -> tuple[str, int]:
        """Return the JSON that this adds and the position reached: the end, after the arguments, or the error."""
        if self._value is None:
            self._value = _QuotedArguments(text[at]) if text[at] in "\"'" else JsonRepair()
            at += isinstance(self._value, _QuotedArguments)
        output, at = self._value.feed(text, at)
        if not self._has_output:
            output = self._normalise_first(output)
        return output, at

    def finish(self) -> str:
        """Return the JSON that completes the arguments."""
        return self._normalise_first(self._value.finish()) if self._value is not None else NO_ARGUMENTS

    def release_pending(self) -> str:
        return self._value.release_pending() if self._value is not None else ""

    def _normalise_first(self, output: str) -> str:
        if output == "null" or not (output or self._has_output or not self.is_done):
            output = NO_ARGUMENTS
        self._has_output = self._has_output or bool(output)
        if self._has_output:
            self.stream = self._value
        return output


class _QuotedArguments:
    """Reads a string, starting after its opening quote, and returns the JSON object in it or the string itself."""

    def __init__(self, quote: str) -> None:
        self._string = JsonStringRepair()
        self._string.quote = quote
        self._unquoter = JsonStringDecoder()
        self._undecided: list[str] = []  # input before the content is known; only whitespace so far
        self._repair: JsonRepair | None = None
        self._verbatim = False  # the content cannot be repaired
        self._is_plain_string = False
        self.is_done = False

    @property
    def is_broken(self) -> bool:
        return self._string.repairs > MAX_ESCAPE_REPAIRS

    @property
    def is_finished(self) -> bool:
        return self.is_done or self.is_broken

    @property
    def can_wait(self) -> bool:
        return self._repair is not None and self._repair.can_wait and not self._verbatim

    def can_pass(self, text: str) -> bool:
        """Text that may pass through a string may also pass through a string within a string."""
        if self._repair is None or self._verbatim or self._unquoter.is_waiting or not self._string.is_plain:
            return False
        return self._repair.can_pass(text)

    def feed(self, text: str, at: int = 0) -> tuple[str, int]:
        if self.is_done:
            return "", at
        inside: list[str] = []
        string, end = self._string, len(text)
        while at < end and string.quote and not self.is_broken:
            at = string.feed(text, at, inside)
        if string.quote:
            return self._consume("".join(inside)), at
        inside.pop()  # the closing quote
        self.is_done = True
        return self._consume("".join(inside)) + self._close(), at

    def finish(self) -> str:
        self.is_done = True
        return self._close()

    def release_pending(self) -> str:
        self.is_done = True
        return "".join(self._undecided)

    def _consume(self, inside: str) -> str:
        if self._is_plain_string or not inside:
            return inside
        text = self._unquoter.feed(inside)
        if self._repair is not None:
            return self._feed_repair(self._repair, text)
        self._undecided.append(inside)
        if not (content := text.lstrip(WHITESPACE)):
            return ""
        raw = "".join(self._undecided)
        self._undecided.clear()
        if content[0] == "{":
            self._repair = JsonRepair()
            return self._feed_repair(self._repair, content)
        self._is_plain_string = True
        return '"' + raw

    def _feed_repair(self, repair: JsonRepair, text: str) -> str:
        if self._verbatim:
            return text
        output, at = repair.feed(text)
        if repair.is_broken:
            self._verbatim = True
            output += repair.release_pending() + text[at:]
        return output

    def _close(self) -> str:
        if self._is_plain_string:
            return '"'
        return self._repair.finish() if self._repair is not None and not self._verbatim else ""
