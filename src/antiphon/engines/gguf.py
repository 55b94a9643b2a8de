"""Reads what a GGUF file says about itself: name, context, chat template and special tokens, never the weights.

The file is mapped and walked once. Every length is checked against what is left of it, so a broken file is one
sentence for a person and costs nothing.
"""

import mmap
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

from msgspec import Struct

from antiphon.errors import StartupError

MAGIC = b"GGUF"
VERSIONS = (2, 3)
MAX_PAIRS = 65_536
MAX_TENSORS = 1_000_000
MAX_TEXT_BYTES = 4 * 1024 * 1024
DEFAULT_ALIGNMENT = 32
KEPT_ITEMS = 4096  # of an array that nobody asked for by name

STRING, ARRAY = 8, 9
SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}

TOKENS = "tokenizer.ggml.tokens"
KINDS = "tokenizer.ggml.token_type"
UNKNOWN, CONTROL, USER_DEFINED = 2, 3, 4  # kinds of tokens

_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")


class Header(Struct, frozen=True, kw_only=True):
    """`control` tokens are never made from text that a user wrote; `marks` are tokens that look like markup."""

    architecture: str
    name: str
    context: int | None  # what the model was trained for
    template: str | None
    bos: str
    bos_id: int | None
    eos: str
    control: dict[str, int]
    marks: dict[str, int]
    vocabulary: int
    longest: int  # bytes of the longest token: no text has fewer tokens than its bytes over this
    pooling: int | None = None  # how a model that embeds makes one vector of those of its tokens
    width: int | None = None  # numbers in a vector


def read_header(path: Path) -> Header:
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _header(_Walk(data))
    except FileNotFoundError:
        raise StartupError(f"There is no model file {path}.") from None
    except (OSError, ValueError) as error:  # a folder, no permission, an empty file; or broken: see _Walk
        raise StartupError(f"{path} is not a usable GGUF file: {_reason(error)}.") from None


def _reason(error: OSError | ValueError) -> str:
    return (error.strerror or "unreadable") if isinstance(error, OSError) else str(error)


class _Walk:
    """A position in the file that only moves forward. ValueError says what is wrong."""

    def __init__(self, data: mmap.mmap) -> None:
        self.data = data
        self.at = 0
        self.end = len(data)
        self.strings: dict[str, list[int]] = {}  # where the strings of some arrays begin
        self.longest = 0  # bytes of a string in such an array

    def need(self, size: int) -> int:
        """The position now; afterwards it is `size` bytes further."""
        at = self.at
        if size > self.end - at:
            raise ValueError("it ends too early")
        self.at = at + size
        return at

    def u32(self) -> int:
        return int(_U32.unpack_from(self.data, self.need(4))[0])

    def u64(self) -> int:
        return int(_U64.unpack_from(self.data, self.need(8))[0])

    def count(self, most: int, what: str) -> int:
        number = self.u64()
        if number > most:
            raise ValueError(f"it claims to have {number} {what}")
        return number

    def text(self) -> str:
        size = self.count(MAX_TEXT_BYTES, "bytes in one text")
        at = self.need(size)
        return self.data[at : at + size].decode("utf-8", "replace")

    def value(self, key: str) -> Any:
        return self.typed(self.u32(), key)

    def typed(self, kind: int, key: str) -> Any:
        if kind == STRING:
            return self.text()
        if kind == ARRAY:
            return self.array(key)
        if kind not in SCALARS:
            raise ValueError(f"{key} has an unknown type")
        scalar = struct.Struct("<" + SCALARS[kind])
        return scalar.unpack_from(self.data, self.need(scalar.size))[0]

    def array(self, key: str) -> Any:
        kind = self.u32()
        size = self.count(self.end, "values in one array")
        if kind == STRING:
            return self.skip_strings(size, key)
        if kind not in SCALARS:
            raise ValueError(f"{key} is an array of an unknown type")
        width = struct.calcsize("<" + SCALARS[kind])
        at = self.need(size * width)
        kept = size if key == KINDS else min(size, KEPT_ITEMS)
        return struct.unpack_from(f"<{kept}{SCALARS[kind]}", self.data, at)

    def skip_strings(self, size: int, key: str) -> int:
        """Hundreds of thousands of them: the reason why this is a loop without calls."""
        data, at, unpack, last = self.data, self.at, _U64.unpack_from, self.end - 8
        places: list[int] = []
        remember: Callable[[int], None] = places.append if key == TOKENS else _forget
        longest = 0
        for _ in range(size):
            if at > last:
                raise ValueError("it ends too early")
            remember(at)
            length = unpack(data, at)[0]
            if length > longest:
                longest = length
            at += 8 + length
        if at > self.end:
            raise ValueError("it ends too early")
        self.at = at
        if places:
            self.strings[key], self.longest = places, longest
        return size

    def string(self, key: str, index: int) -> str:
        places = self.strings.get(key, [])
        if not 0 <= index < len(places):
            return ""
        here, self.at = self.at, places[index]
        text = self.text()
        self.at = here
        return text


def _forget(place: int) -> None:
    pass


def _header(walk: _Walk) -> Header:
    if walk.data[walk.need(4) : 4] != MAGIC:
        raise ValueError("it does not begin with GGUF")
    version = walk.u32()
    if version not in VERSIONS:
        raise ValueError(f"its version {version} is not known")
    tensors = walk.count(MAX_TENSORS, "tensors")
    pairs = {}
    for _ in range(walk.count(MAX_PAIRS, "settings")):
        key = walk.text()
        pairs[key] = walk.value(key)
    _check_tensors(walk, tensors, pairs)
    return _summary(walk, pairs)


def _check_tensors(walk: _Walk, tensors: int, pairs: dict[str, Any]) -> None:
    """Whether the last tensor begins within the file: a download that was cut short is the commonest fault."""
    furthest = 0
    for _ in range(tensors):
        walk.text()
        dimensions = walk.u32()
        if dimensions > 8:
            raise ValueError(f"a tensor claims to have {dimensions} dimensions")
        walk.need(8 * dimensions + 4)
        furthest = max(furthest, walk.u64())
    alignment = _number(pairs, "general.alignment") or DEFAULT_ALIGNMENT
    begin = -(-walk.at // alignment) * alignment
    if tensors and begin + furthest >= walk.end:
        raise ValueError("it ends too early, as a download that was cut short does")


def _summary(walk: _Walk, pairs: dict[str, Any]) -> Header:
    architecture = _text(pairs, "general.architecture") or ""
    if not architecture:
        raise ValueError("it names no architecture")
    context = _number(pairs, f"{architecture}.context_length")
    bos, eos = _number(pairs, "tokenizer.ggml.bos_token_id"), _number(pairs, "tokenizer.ggml.eos_token_id")
    kinds = pairs.get(KINDS)
    special = _special(walk, kinds if isinstance(kinds, tuple) else ())
    return Header(
        architecture=architecture,
        name=_text(pairs, "general.name") or "",
        context=context or None,
        template=_text(pairs, "tokenizer.chat_template"),
        bos=walk.string(TOKENS, bos if bos is not None else -1),
        bos_id=bos,
        eos=walk.string(TOKENS, eos if eos is not None else -1),
        control={**special[UNKNOWN], **special[CONTROL]},
        marks={text: id for text, id in special[USER_DEFINED].items() if _looks_like_markup(text)},
        vocabulary=len(walk.strings.get(TOKENS, ())),
        longest=walk.longest,
        pooling=_number(pairs, f"{architecture}.pooling_type"),
        width=_number(pairs, f"{architecture}.embedding_length_out")
        or _number(pairs, f"{architecture}.embedding_length"),
    )


def _text(pairs: dict[str, Any], key: str) -> str | None:
    value = pairs.get(key)
    return value if isinstance(value, str) else None


def _number(pairs: dict[str, Any], key: str) -> int | None:
    value = pairs.get(key)
    return value if isinstance(value, int) and value >= 0 else None


def _special(walk: _Walk, kinds: tuple[int, ...]) -> dict[int, dict[str, int]]:
    special: dict[int, dict[str, int]] = {UNKNOWN: {}, CONTROL: {}, USER_DEFINED: {}}
    for index, kind in enumerate(kinds):
        if kind in special and (text := walk.string(TOKENS, index)):
            special[kind][text] = index
    return special


def _looks_like_markup(text: str) -> bool:
    """<tool_call>, [INST] or ]~b]; not the runs of spaces and line ends that some vocabularies have among them."""
    first, last = text[0], text[-1]
    if len(text) < 3 or first.isspace() or first.isalnum() or last.isalnum():
        return False
    return (first, last) in (("<", ">"), ("[", "]")) or any(char.isalpha() for char in text)
