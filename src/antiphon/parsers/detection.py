"""Which family's words a model uses: by the operator's word, by its chat template's own words, by its name.

The tables are in families.py. What nobody knows is read as most models write: thoughts in <think>, calls in Hermes.
"""

from collections.abc import Iterable
from functools import lru_cache

from msgspec import Struct

from antiphon.core.prompt import Reads
from antiphon.errors import StartupError
from antiphon.parsers.calls.registry import FORMATS
from antiphon.parsers.model_families import (
    CALL_NAMES,
    CALL_WORDS,
    FAMILIES,
    HARMONY,
    THOUGHT_NAMES,
    THOUGHT_WORDS,
    UNREAD,
    Family,
)
from antiphon.parsers.reasoning.formats import THOUGHTS

AUTO, NONE = "auto", "none"
USUAL_CALLS, USUAL_THOUGHTS = "hermes", "think"


class Manner(Struct, frozen=True, kw_only=True):
    thoughts: str | None = None  # a name in thoughts.py
    calls: str | None = USUAL_CALLS  # a name in calls/registry.py; None: the operator wants none to be found
    foreign: bool = False  # its own calls cannot be read here: it has to be told how to write them
    harmony: bool = False  # it is gpt-oss, which is read by tokens


@lru_cache(maxsize=256)
def choose_manner(model: str, architecture: str | None, template: str, reads: Reads) -> Manner:
    """`template`: its source, as far as it is known; `architecture`: as the model's file or its engine names it."""
    if _in_harmony(reads, _family(architecture or model), "" if architecture else template):
        return Manner(harmony=True)
    family = _family(architecture) or _family(model)
    thoughts, calls = _thoughts(reads.thoughts, family, template), _calls(reads.calls, family, template)
    if calls == UNREAD:
        return Manner(thoughts=thoughts, foreign=True)
    return Manner(thoughts=thoughts, calls=calls)


@lru_cache(maxsize=256)
def named_manner(reads: Reads) -> Manner:
    """For engines that parse their output themselves: only what the operator has named is read here."""
    return Manner(
        thoughts=None if reads.thoughts == AUTO else _named_thoughts(reads.thoughts),
        calls=None if reads.calls == AUTO else _named_calls(reads.calls),
    )


def check_reads(reads: Reads) -> None:
    """At start-up: a word that nobody knows is a StartupError that lists those there are."""
    if reads.thoughts != AUTO:
        _named_thoughts(reads.thoughts)
    if reads.calls != AUTO:
        _named_calls(reads.calls)


def _in_harmony(reads: Reads, family: Family | None, template: str) -> bool:
    """Its tokens are those of one architecture: where that is known to be another, a name says nothing."""
    if reads.harmony or HARMONY.intersection((reads.thoughts, reads.calls)):
        return True
    if (reads.thoughts, reads.calls) != (AUTO, AUTO):
        return False
    return (family is not None and family.harmony) or "<|channel|>analysis" in template


def _thoughts(word: str, family: Family | None, template: str) -> str | None:
    if word != AUTO:
        return _named_thoughts(word)
    named = family.thoughts if family else None
    found = _first(THOUGHT_WORDS, template)
    if found is None or (found == USUAL_THOUGHTS and named is not None and "<think>" in THOUGHTS[named].opening):
        return named or (None if template else USUAL_THOUGHTS)
    return found


def _calls(word: str, family: Family | None, template: str) -> str | None:
    if word != AUTO:
        return _named_calls(word)
    return _first(CALL_WORDS, template) or (family.calls if family else None) or USUAL_CALLS


def _named_thoughts(word: str) -> str | None:
    name = word.replace("-", "_").lower()
    name = THOUGHT_NAMES.get(name, name)
    if name in HARMONY or name == NONE:
        return None
    if name not in THOUGHTS:
        raise _unknown("--reasoning-parser", word, THOUGHTS)
    return name


def _named_calls(word: str) -> str | None:
    for name in (word, word.replace("-", "_"), CALL_NAMES.get(word.replace("-", "_"), "")):
        if name in FORMATS:
            return name
    if word in HARMONY or word == NONE:
        return None
    raise _unknown("--tool-call-parser", word, FORMATS)


def _unknown(flag: str, word: str, known: Iterable[str]) -> StartupError:
    return StartupError(f"{flag} {word!r} is not known; there are auto, none, {', '.join(sorted(known))}.")


def _first(words: tuple[tuple[tuple[str, ...], str], ...], template: str) -> str | None:
    return next((name for said, name in words if all(word in template for word in said)), None)


def _family(name: str | None) -> Family | None:
    """The first row of which all words are in the name."""
    told = (name or "").lower().replace("_", "-").replace(".", "-")
    return next((family for family in FAMILIES if all(word in told for word in family.words)), None)
