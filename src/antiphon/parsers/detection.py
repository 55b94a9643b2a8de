"""Detects the output format of a model: by configuration, by markers in its chat template, or by its name.

The tables are in parsers/model_families.py. Unknown models get the most common format: reasoning in <think>, calls as
in Hermes.
"""

from collections.abc import Iterable
from functools import lru_cache

from msgspec import Struct

from antiphon.core.prompt import ParserChoice
from antiphon.errors import StartupError
from antiphon.parsers.calls.registry import FORMATS
from antiphon.parsers.model_families import (
    CALL_ALIASES,
    CALL_MARKERS,
    HARMONY_ALIASES,
    MODEL_FAMILIES,
    REASONING_ALIASES,
    REASONING_MARKERS,
    UNSUPPORTED,
    ModelFamily,
)
from antiphon.parsers.reasoning.formats import REASONING_FORMATS

AUTO, NONE = "auto", "none"
DEFAULT_CALLS, DEFAULT_REASONING = "hermes", "think"


class ModelOutputFormat(Struct, frozen=True, kw_only=True):
    """Formats in which a model writes reasoning and calls."""

    reasoning: str | None = None  # name in parsers/reasoning/formats.py
    calls: str | None = DEFAULT_CALLS  # name in parsers/calls/registry.py; None: the operator disabled call parsing
    calls_unsupported: bool = False  # its native calls cannot be parsed: the prompt must specify another format
    harmony: bool = False  # gpt-oss, which is parsed by tokens


@lru_cache(maxsize=256)
def detect_output_format(
    model: str, architecture: str | None, template: str, choice: ParserChoice
) -> ModelOutputFormat:
    """Detect the format of raw output.

    `template`: source of the chat template, if known. `architecture`: as named by the model file or the engine.
    """
    if _is_harmony(choice, _find_family(architecture or model), "" if architecture else template):
        return ModelOutputFormat(harmony=True)
    family = _find_family(architecture) or _find_family(model)
    reasoning, calls = (
        _detect_reasoning(choice.reasoning, family, template),
        _detect_calls(choice.calls, family, template),
    )
    if calls == UNSUPPORTED:
        return ModelOutputFormat(reasoning=reasoning, calls_unsupported=True)
    return ModelOutputFormat(reasoning=reasoning, calls=calls)


@lru_cache(maxsize=256)
def get_configured_format(choice: ParserChoice) -> ModelOutputFormat:
    """Return the configured format, for engines that parse their output themselves: nothing is detected."""
    return ModelOutputFormat(
        reasoning=None if choice.reasoning == AUTO else _find_reasoning_format(choice.reasoning),
        calls=None if choice.calls == AUTO else _find_call_format(choice.calls),
    )


def check_parser_choice(choice: ParserChoice) -> None:
    """Validate the configuration at start-up: an unknown name raises a StartupError that lists the valid ones."""
    if choice.reasoning != AUTO:
        _find_reasoning_format(choice.reasoning)
    if choice.calls != AUTO:
        _find_call_format(choice.calls)


def _is_harmony(choice: ParserChoice, family: ModelFamily | None, template: str) -> bool:
    """Return whether the model is gpt-oss. Its tokens belong to one architecture: if another one is known, names do not
    count.
    """
    if choice.harmony or HARMONY_ALIASES.intersection((choice.reasoning, choice.calls)):
        return True
    if (choice.reasoning, choice.calls) != (AUTO, AUTO):
        return False
    return (family is not None and family.harmony) or "<|channel|>analysis" in template


def _detect_reasoning(parser_name: str, family: ModelFamily | None, template: str) -> str | None:
    if parser_name != AUTO:
        return _find_reasoning_format(parser_name)
    family_format = family.reasoning if family else None
    found = _match_template(REASONING_MARKERS, template)
    if found is None or (
        found == DEFAULT_REASONING
        and family_format is not None
        and "<think>" in REASONING_FORMATS[family_format].opening
    ):
        return family_format or (None if template else DEFAULT_REASONING)
    return found


def _detect_calls(parser_name: str, family: ModelFamily | None, template: str) -> str | None:
    if parser_name != AUTO:
        return _find_call_format(parser_name)
    return _match_template(CALL_MARKERS, template) or (family.calls if family else None) or DEFAULT_CALLS


def _find_reasoning_format(parser_name: str) -> str | None:
    name = parser_name.replace("-", "_").lower()
    name = REASONING_ALIASES.get(name, name)
    if name in HARMONY_ALIASES or name == NONE:
        return None
    if name not in REASONING_FORMATS:
        raise _unknown_parser_error("--reasoning-parser", parser_name, REASONING_FORMATS)
    return name


def _find_call_format(parser_name: str) -> str | None:
    for name in (parser_name, parser_name.replace("-", "_"), CALL_ALIASES.get(parser_name.replace("-", "_"), "")):
        if name in FORMATS:
            return name
    if parser_name in HARMONY_ALIASES or parser_name == NONE:
        return None
    raise _unknown_parser_error("--tool-call-parser", parser_name, FORMATS)


def _unknown_parser_error(flag: str, parser_name: str, available: Iterable[str]) -> StartupError:
    return StartupError(f"{flag} {parser_name!r} is not known; there are auto, none, {', '.join(sorted(available))}.")


def _match_template(rows: tuple[tuple[tuple[str, ...], str], ...], template: str) -> str | None:
    return next((name for markers, name in rows if all(marker in template for marker in markers)), None)


def _find_family(name: str | None) -> ModelFamily | None:
    """Return the first family whose fragments are all in the name."""
    normalised = (name or "").lower().replace("_", "-").replace(".", "-")
    return next(
        (family for family in MODEL_FAMILIES if all(fragment in normalised for fragment in family.fragments)), None
    )
