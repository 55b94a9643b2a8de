"""Texts that a tool must not trust: pages and files that a model reads, and the arguments that a model writes."""

import re
from typing import Final, TypeVar

import msgspec

from antiphon.errors import InvalidValue

MAX_ARGUMENT_LENGTH = 64 * 1024  # characters
_REPLACEMENTS: Final = str.maketrans({"【": "〔", "】": "〕", "†": "‡", "\r": None, "\t": " ", "\0": None})
_MARKER: Final = re.compile(r"【\d{1,6}†([^【】\n]*)】")
_INSTRUCTION: Final = re.compile(r"^Cite [^\n]*【[^\n]*\n*", re.MULTILINE)  # of a tool: the texts have no such bracket

T = TypeVar("T")


def escape_markers(text: str) -> str:
    """Replace the characters of citation markers in a text, and lone surrogates."""
    return replace_surrogates(text.translate(_REPLACEMENTS))


def drop_markers(text: str) -> str:
    """Return what a tool sent a model of pages or files without markers, which only hold within one response."""
    return _MARKER.sub(r"[\1]", _INSTRUCTION.sub("", text))


def replace_surrogates(text: str) -> str:
    """Replace lone surrogates, which cannot be encoded, by question marks."""
    return text.encode("utf-8", "replace").decode()


def decode_arguments(decoder: msgspec.json.Decoder[T], name: str, arguments: str) -> T:
    """Decode the arguments of the function `name`. Raises InvalidValue with a message for the model."""
    if len(arguments) > MAX_ARGUMENT_LENGTH:
        raise InvalidValue(f"The arguments have more than {MAX_ARGUMENT_LENGTH} characters.", param="arguments")
    try:
        return decoder.decode(arguments.strip() or "{}")
    except (msgspec.MsgspecError, UnicodeError) as error:
        raise InvalidValue(f"The arguments of {name} do not fit: {error}.", param="arguments") from None
    except RecursionError:
        raise InvalidValue(f"The arguments of {name} are nested too deeply.", param="arguments") from None
