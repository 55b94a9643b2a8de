"""Words and numbers as Python writes them, as JSON."""

import json
from typing import Final

from antiphon.parsers.calls.values import quoted

_WINDOW: Final = 8192
WORDS: Final = {"True": "true", "False": "false", "None": "null", "true": "true", "false": "false", "null": "null"}
_DIGITS: Final = "0123456789,"
_RUN: Final = "0123456789.-+eE, \t\r\n"
_LONGEST: Final = 400  # of a number
NUMERIC: Final = frozenset("+-.0123456789")


def is_plain_number(word: str) -> bool:
    """Whether JSON has it too."""
    if word.isdigit():
        return word.isascii() and (word[0] != "0" or word == "0")
    if len(word) > _LONGEST or word[:1] not in NUMERIC:
        return False
    try:
        json.loads(word)
    except ValueError:
        return False
    return True


def word_as_json(word: str) -> str:
    """A constant, a number, or else the word itself as a string."""
    if word in WORDS:
        return WORDS[word]
    if is_plain_number(word):
        return word
    if len(word) <= _LONGEST and word[0] in NUMERIC and word.isascii():
        return _number(word) or quoted(word)
    return quoted(word)


def _number(word: str) -> str:
    """1_000, 0x1F, 007, .5, 1., +1; nothing if it is none."""
    try:
        return str(int(word, 0))
    except ValueError:
        pass
    try:
        return str(int(word))
    except ValueError:
        pass
    try:
        value = float(word)
    except ValueError:
        return ""
    return repr(value) if value - value == 0 else ""


def number_run(text: str, at: int) -> tuple[str, int]:
    """Plain numbers, each with a comma after it, as many as there are: without the last comma; and where they end."""
    window = text[at : at + _WINDOW]
    run = window[: len(window) - len(window.lstrip(_DIGITS))]
    if len(run) > 1 and run[0] != "0" and run[0] != "," and ",," not in run and ",0" not in run:
        run = run[: run.rfind(",") + 1]
        return run[:-1], at + len(run)
    run = window[: len(window) - len(window.lstrip(_RUN))]
    run = run[: run.rfind(",") + 1]
    while run:
        try:
            json.loads(f"[{run[:-1]}]")
        except json.JSONDecodeError as wrong:
            run = run[: run.rfind(",", 0, max(0, wrong.pos - 1)) + 1]
        except ValueError:  # a number that is too long
            return "", at
        else:
            return "".join(run[:-1].split()), at + len(run)
    return "", at
