"""Reads the metadata of a GGUF file: name, context, chat template, special tokens, and where its weights are.

The file is mapped and scanned once. Every length is checked against the rest of the file, so a broken file costs one
error message and no memory. Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

import mmap
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from antiphon.core.prompt import Sampling
from antiphon.errors import StartupError

MAGIC = b"GGUF"
VERSIONS = (2, 3)
MAX_PAIRS = 65_536
MAX_TENSORS = 1_000_000
MAX_TEXT_BYTES = 4 * 1024 * 1024
DEFAULT_ALIGNMENT = 32
MAX_ITEMS_READ = 4096  # of an array other than the token types

U32, STRING, ARRAY, U64 = 4, 8, 9, 10
SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}

TOKENS = "tokenizer.ggml.tokens"
TOKEN_TYPES = "tokenizer.ggml.token_type"
UNKNOWN, CONTROL, USER_DEFINED = 2, 3, 4  # token types
NO_POOLING, MEAN, CLS, LAST, RANK = range(5)  # pooling types

# Keys of recommended sampling values, their fields, and the range of each.
SAMPLING_KEYS = {
    "general.sampling.temp": ("temperature", 0, 2),
    "general.sampling.top_p": ("top_p", 0, 1),
    "general.sampling.top_k": ("top_k", 1, 1_000_000),
    "general.sampling.min_p": ("min_p", 0, 0.999),
    "general.sampling.penalty_repeat": ("repetition_penalty", 0.001, 1000),
}

_STRING_LENGTH = struct.Struct("<Q")

T = TypeVar("T")


class GgufTensorEntry(Struct, frozen=True):
    """The type and the place of a tensor in the file; `shape` is in the order of torch, slowest dimension first."""

    kind: int
    shape: tuple[int, ...]
    offset: int


class GgufHeader(Struct, frozen=True, kw_only=True):
    """Metadata of a model file.

    `control_tokens` must never be produced from text that a user wrote; `markup_tokens` are user-defined tokens that
    look like markup.
    """

    architecture: str
    name: str
    context: int | None  # trained context in tokens
    template: str | None
    bos: str
    bos_id: int | None
    eos: str
    control_tokens: dict[str, int]
    markup_tokens: dict[str, int]
    vocabulary_size: int
    max_token_bytes: int  # a text has at least its bytes divided by this many tokens
    pooling: int | None = None  # pooling type of an embedding model
    embedding_size: int | None = None  # dimensions of an embedding
    sampling: Sampling = Sampling()  # that its author recommends
    projects_images: bool = False  # it is the projector of a model for images
    tokenizer: str = ""  # kind of tokenizer
    tensor_kinds: dict[str, int] = {}  # types of the tensors, by name


class GgufContent(Struct, frozen=True):
    """Settings, vocabulary and tensors of a model, for a program that computes with them."""

    settings: dict[str, Any]
    tokens: list[str]
    tensors: dict[str, GgufTensorEntry]


def read_header(path: Path) -> GgufHeader:
    return _read(path, _build_header)


def read_content(path: Path) -> GgufContent:
    return _read(path, _build_content)


def _read(path: Path, build: "Callable[[_GgufReader, dict[str, Any], dict[str, GgufTensorEntry]], T]") -> T:
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            reader = _GgufReader(data)
            return build(reader, *_parse(reader))
    except FileNotFoundError:
        raise StartupError(f"There is no model file {path}.") from None
    except (OSError, ValueError) as error:  # a folder, no permission, an empty file, or a broken one (see _GgufReader)
        reason = (error.strerror or "unreadable") if isinstance(error, OSError) else str(error)
        raise StartupError(f"{path} is not a usable GGUF file: {reason}.") from None


class _GgufReader:
    """Forward reader over the mapped file; raises ValueError with the reason for a broken one."""

    def __init__(self, data: mmap.mmap) -> None:
        self.data = data
        self.position = 0
        self.end = len(data)
        self.token_offsets: list[int] = []  # offsets of the strings in the token list
        self.max_token_bytes = 0  # longest string there

    def advance(self, size: int) -> int:
        """Move forward by `size` bytes and return the position before."""
        at = self.position
        if size > self.end - at:
            raise ValueError("it ends too early")
        self.position = at + size
        return at

    def read_scalar(self, kind: int) -> Any:
        scalar = struct.Struct("<" + SCALARS[kind])
        return scalar.unpack_from(self.data, self.advance(scalar.size))[0]

    def read_count(self, limit: int, noun: str) -> int:
        number: int = self.read_scalar(U64)
        if number > limit:
            raise ValueError(f"it claims to have {number} {noun}")
        return number

    def read_text(self) -> str:
        size = self.read_count(MAX_TEXT_BYTES, "bytes in one text")
        at = self.advance(size)
        return self.data[at : at + size].decode("utf-8", "replace")

    def read_value(self, key: str) -> Any:
        kind = self.read_scalar(U32)
        if kind == STRING:
            return self.read_text()
        if kind == ARRAY:
            return self.read_array(key)
        if kind not in SCALARS:
            raise ValueError(f"{key} has an unknown type")
        return self.read_scalar(kind)

    def read_array(self, key: str) -> Any:
        kind = self.read_scalar(U32)
        size = self.read_count(self.end, "values in one array")
        if kind == STRING:
            return self.skip_strings(size, key)
        if kind not in SCALARS:
            raise ValueError(f"{key} is an array of an unknown type")
        at = self.advance(size * struct.calcsize("<" + SCALARS[kind]))
        count = size if key == TOKEN_TYPES else min(size, MAX_ITEMS_READ)
        return struct.unpack_from(f"<{count}{SCALARS[kind]}", self.data, at)

    def skip_strings(self, size: int, key: str) -> int:
        """Skip an array of strings. There are hundreds of thousands, so the loop makes as few calls as possible."""
        data, at, unpack, last = self.data, self.position, _STRING_LENGTH.unpack_from, self.end - 8
        offsets: list[int] = []
        max_bytes = 0
        for _ in range(size):
            if at > last:
                raise ValueError("it ends too early")
            offsets.append(at)
            length = unpack(data, at)[0]
            if length > max_bytes:
                max_bytes = length
            at += 8 + length
        if at > self.end:
            raise ValueError("it ends too early")
        self.position = at
        if key == TOKENS:
            self.token_offsets, self.max_token_bytes = offsets, max_bytes
        return size

    def token_at(self, index: int | None) -> str:
        """Return the text of a token; the reader has read everything else by then."""
        if index is None or index >= len(self.token_offsets):
            return ""
        self.position = self.token_offsets[index]
        return self.read_text()


def _parse(reader: _GgufReader) -> tuple[dict[str, Any], dict[str, GgufTensorEntry]]:
    """Return the settings and the tensors."""
    if reader.data[reader.advance(4) : 4] != MAGIC:
        raise ValueError("it does not begin with GGUF")
    version = reader.read_scalar(U32)
    if version not in VERSIONS:
        raise ValueError(f"its version {version} is not supported")
    count = reader.read_count(MAX_TENSORS, "tensors")
    pairs = {}
    for _ in range(reader.read_count(MAX_PAIRS, "settings")):
        key = reader.read_text()
        pairs[key] = reader.read_value(key)
    tensors = dict([_read_tensor(reader) for _ in range(count)])
    alignment = _int_value(pairs, "general.alignment") or DEFAULT_ALIGNMENT
    begin = -(-reader.position // alignment) * alignment
    # the most common fault is an incomplete download
    if count and begin + max([tensor.offset for tensor in tensors.values()]) >= reader.end:
        raise ValueError("it ends too early; the download may be incomplete")
    return pairs, {name: replace(tensor, offset=begin + tensor.offset) for name, tensor in tensors.items()}


def _read_tensor(reader: _GgufReader) -> tuple[str, GgufTensorEntry]:
    name = reader.read_text()
    dimensions = reader.read_scalar(U32)
    if dimensions > 8:
        raise ValueError(f"a tensor claims to have {dimensions} dimensions")
    shape = tuple(reversed([reader.read_scalar(U64) for _ in range(dimensions)]))
    return name, GgufTensorEntry(reader.read_scalar(U32), shape, reader.read_scalar(U64))


def _build_content(reader: _GgufReader, pairs: dict[str, Any], tensors: dict[str, GgufTensorEntry]) -> GgufContent:
    tokens = [reader.token_at(index) for index in range(len(reader.token_offsets))]
    return GgufContent(pairs, tokens, tensors)


def _build_header(reader: _GgufReader, pairs: dict[str, Any], tensors: dict[str, GgufTensorEntry]) -> GgufHeader:
    architecture = _text_value(pairs, "general.architecture") or ""
    if not architecture:
        raise ValueError("it names no architecture")
    context = _int_value(pairs, f"{architecture}.context_length")
    bos, eos = _int_value(pairs, "tokenizer.ggml.bos_token_id"), _int_value(pairs, "tokenizer.ggml.eos_token_id")
    kinds = pairs.get(TOKEN_TYPES)
    special = _special_tokens(reader, kinds if isinstance(kinds, tuple) else ())
    return GgufHeader(
        architecture=architecture,
        name=_text_value(pairs, "general.name") or "",
        context=context or None,
        template=_text_value(pairs, "tokenizer.chat_template"),
        bos=reader.token_at(bos),
        bos_id=bos,
        eos=reader.token_at(eos),
        control_tokens={**special[UNKNOWN], **special[CONTROL]},
        markup_tokens={text: id for text, id in special[USER_DEFINED].items() if _looks_like_markup(text)},
        vocabulary_size=len(reader.token_offsets),
        max_token_bytes=reader.max_token_bytes,
        pooling=_int_value(pairs, f"{architecture}.pooling_type"),
        embedding_size=_int_value(pairs, f"{architecture}.embedding_length_out")
        or _int_value(pairs, f"{architecture}.embedding_length"),
        sampling=_read_sampling(pairs),
        projects_images=pairs.get("clip.has_vision_encoder") is True,
        tokenizer=_text_value(pairs, "tokenizer.ggml.model") or "",
        tensor_kinds={name: tensor.kind for name, tensor in tensors.items()},
    )


def _read_sampling(pairs: dict[str, Any]) -> Sampling:
    """Read the values that the author recommends. Floats are of single precision: 0.95 is stored as 0.94999999."""
    values: dict[str, Any] = {}
    for key, (field, lowest, highest) in SAMPLING_KEYS.items():
        value = pairs.get(key)
        if isinstance(value, int | float) and value is not True and lowest <= value <= highest:
            values[field] = round(value, 6)
    return Sampling(**values)


def _text_value(pairs: dict[str, Any], key: str) -> str | None:
    value = pairs.get(key)
    return value if isinstance(value, str) else None


def _int_value(pairs: dict[str, Any], key: str) -> int | None:
    value = pairs.get(key)
    return value if isinstance(value, int) and value >= 0 else None


def _special_tokens(reader: _GgufReader, kinds: tuple[int, ...]) -> dict[int, dict[str, int]]:
    special: dict[int, dict[str, int]] = {UNKNOWN: {}, CONTROL: {}, USER_DEFINED: {}}
    for index, kind in enumerate(kinds):
        if kind in special and (text := reader.token_at(index)):
            special[kind][text] = index
    return special


def _looks_like_markup(text: str) -> bool:
    """Return whether a token is markup such as <tool_call>, [INST] or ]~b]; false for runs of spaces and line ends."""
    first, last = text[0], text[-1]
    if len(text) < 3 or first.isspace() or first.isalnum() or last.isalnum():
        return False
    return (first, last) in (("<", ">"), ("[", "]")) or any(char.isalpha() for char in text)
