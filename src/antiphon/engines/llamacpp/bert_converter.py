"""Makes a GGUF file of a BERT that embeds sentences, as sentence-transformers keeps it.

It needs nothing that is not installed: safetensors are easy to read, GGUF is easy to write. Matrices are kept in 16
bits, which changes an embedding in the sixth digit of its cosine.

Writes a GGUF file: settings, then where each tensor is, then the tensors, one at a time.

The same input gives the same bytes, so that a file that was made here can be known by its hash.

Reads a safetensors file: a length, a JSON object that says where each tensor lies, and the tensors.

The file is one that was fetched: whatever is wrong with it is a ValueError, before anything is read that is not there.
"""

import struct
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import BinaryIO

from msgspec import DecodeError, Struct, convert
from msgspec.json import decode

from antiphon.errors import StartupError

VERSION = 3
ALIGNMENT = 32
BLOCK = 256 * 1024
F32, F16 = 0, 1

Value = str | bool | int | float | Sequence[str] | Sequence[int]


class Tensor(Struct, frozen=True, kw_only=True):
    """`read` gives its numbers, as little-endian 32-bit floats; `shape` is as torch has it, slowest dimension first."""

    name: str
    shape: tuple[int, ...]
    read: Callable[[], bytes]
    half: bool = False  # kept in 16 bits

    @property
    def bytes(self) -> int:
        size = 2 if self.half else 4
        for length in self.shape:
            size *= length
        return size


def write(file: BinaryIO, settings: dict[str, Value], tensors: Sequence[Tensor], wrote: Callable[[int], None]) -> None:
    """`wrote` is told after each tensor how many bytes of them there are."""
    head = b"GGUF" + struct.pack("<IQQ", VERSION, len(tensors), len(settings))
    head += b"".join([_text(key) + _value(value) for key, value in settings.items()])
    done = 0
    for tensor in tensors:
        lengths = struct.pack(f"<{len(tensor.shape)}Q", *reversed(tensor.shape))
        head += _text(tensor.name) + struct.pack("<I", len(tensor.shape)) + lengths
        head += struct.pack("<IQ", F16 if tensor.half else F32, done)
        done += _aligned(tensor.bytes)
    file.write(head + bytes(_aligned(len(head)) - len(head)))
    done = 0
    for tensor in tensors:
        data = _halved(tensor.read()) if tensor.half else tensor.read()
        if len(data) != tensor.bytes:
            raise ValueError(f"{tensor.name} has {len(data)} bytes instead of {tensor.bytes}")
        done += file.write(data + bytes(_aligned(len(data)) - len(data)))
        wrote(done)


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def _halved(data: bytes) -> bytes:
    """A block at a time: as objects of Python they take eight times the room."""
    return b"".join([_half_block(data[at : at + BLOCK]) for at in range(0, len(data), BLOCK)])


def _half_block(data: bytes) -> bytes:
    numbers = len(data) // 4
    return struct.pack(f"<{numbers}e", *struct.unpack(f"<{numbers}f", data))


def _text(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def _value(value: Value) -> bytes:
    match value:
        case bool():
            return struct.pack("<I?", 7, value)
        case int():
            return struct.pack("<II", 4, value)
        case float():
            return struct.pack("<If", 6, value)
        case str():
            return struct.pack("<I", 8) + _text(value)
        case _:
            return struct.pack("<I", 9) + _array(value)


def _array(values: Sequence[str] | Sequence[int]) -> bytes:
    texts = [value for value in values if isinstance(value, str)]
    if texts:
        return struct.pack("<IQ", 8, len(texts)) + b"".join([_text(text) for text in texts])
    return struct.pack(f"<IQ{len(values)}i", 5, len(values), *values)


MAX_HEADER_BYTES = 16 * 1024 * 1024


class Place(Struct, frozen=True, kw_only=True):
    dtype: str
    shape: tuple[int, ...]
    data_offsets: tuple[int, int]


class Tensors:
    def __init__(self, path: Path) -> None:
        self._path = path
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if length > MAX_HEADER_BYTES:
                raise ValueError(f"the header of {path.name} claims to have {length} bytes")
            header = decode(file.read(length), type=dict[str, object])
        self._begin = 8 + length
        self._end = path.stat().st_size - self._begin
        self.places = {name: convert(place, Place) for name, place in header.items() if name != "__metadata__"}

    def read(self, name: str) -> bytes:
        begin, end = self.places[name].data_offsets
        if not 0 <= begin <= end <= self._end:
            raise ValueError(f"{name} lies outside of {self._path.name}")
        with self._path.open("rb") as file:
            file.seek(self._begin + begin)
            return file.read(end - begin)


CONFIG, WEIGHTS, WORDS = "config.json", "model.safetensors", "vocab.txt"
FILES = (CONFIG, WEIGHTS, WORDS)

MEAN_POOLING = 1
NORMAL, CONTROL = 1, 3  # kinds of tokens
HALF = 1  # kind of file
SPECIAL = {
    "padding": "[PAD]", "unknown": "[UNK]", "bos": "[CLS]", "cls": "[CLS]", "eos": "[SEP]", "seperator": "[SEP]",
    "mask": "[MASK]",
}  # fmt: skip

_EMBEDDINGS = {
    "word_embeddings": "token_embd",
    "position_embeddings": "position_embd",
    "token_type_embeddings": "token_types",
    "LayerNorm": "token_embd_norm",
}
_LAYER = {
    "attention.self.query": "attn_q",
    "attention.self.key": "attn_k",
    "attention.self.value": "attn_v",
    "attention.output.dense": "attn_output",
    "attention.output.LayerNorm": "attn_output_norm",
    "intermediate.dense": "ffn_up",
    "output.dense": "ffn_down",
    "output.LayerNorm": "layer_output_norm",
}
_EXACT = frozenset({"position_embd.weight", "token_types.weight"})  # llama.cpp wants them in 32 bits


class _Config(Struct, frozen=True):
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    max_position_embeddings: int
    type_vocab_size: int
    layer_norm_eps: float


def convert_bert(folder: Path, name: str, target: Path, tell: Callable[[int, int], None]) -> None:
    """From FILES in the folder. `tell` hears how many bytes of how many are written."""
    try:
        config = decode((folder / CONFIG).read_bytes(), type=_Config)
        words = (folder / WORDS).read_text("utf-8").removesuffix("\n").split("\n")
        tensors = list(_tensors(Tensors(folder / WEIGHTS), config.num_hidden_layers))
        settings = {**_settings(config, name), **_vocabulary(words, config.type_vocab_size)}
        whole = sum([tensor.bytes for tensor in tensors])
        with target.open("wb") as file:
            write(file, settings, tensors, lambda done: tell(min(done, whole), whole))
    except (DecodeError, KeyError, UnicodeDecodeError, ValueError) as error:
        raise StartupError(f"The files of {name} are not those of a sentence encoder: {error}.") from None


def _settings(config: _Config, name: str) -> dict[str, Value]:
    return {
        "general.architecture": "bert",
        "general.name": name,
        "general.file_type": HALF,
        "bert.context_length": config.max_position_embeddings,
        "bert.embedding_length": config.hidden_size,
        "bert.feed_forward_length": config.intermediate_size,
        "bert.block_count": config.num_hidden_layers,
        "bert.attention.head_count": config.num_attention_heads,
        "bert.attention.layer_norm_epsilon": config.layer_norm_eps,
        "bert.attention.causal": False,
        "bert.pooling_type": MEAN_POOLING,
    }


def _vocabulary(words: list[str], types: int) -> dict[str, Value]:
    """llama.cpp writes a word's beginning as SentencePiece does, where BERT marks its continuation."""
    special = set(SPECIAL.values())
    tokens = [word if word in special else _piece(word) for word in words]
    kinds = [CONTROL if word in special else NORMAL for word in words]
    ids = {f"tokenizer.ggml.{name}_token_id": words.index(word) for name, word in SPECIAL.items()}
    return {
        "tokenizer.ggml.model": "bert",
        "tokenizer.ggml.token_type_count": types,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": kinds,
        **ids,
    }


def _piece(word: str) -> str:
    return word[2:] if word.startswith("##") else f"\u2581{word}"


def _tensors(found: Tensors, layers: int) -> Iterator[Tensor]:
    for ours, theirs in _names(layers):
        for leaf in ("weight", "bias"):
            stored = f"{theirs}.{leaf}"
            if stored not in found.places and leaf == "bias":
                continue
            place = found.places[stored]
            if place.dtype != "F32":
                raise ValueError(f"{stored} is of the type {place.dtype}")
            name = f"{ours}.{leaf}"
            half = len(place.shape) > 1 and name not in _EXACT
            yield Tensor(name=name, shape=place.shape, read=partial(found.read, stored), half=half)


def _names(layers: int) -> Iterator[tuple[str, str]]:
    """What llama.cpp calls each, and what it is called in the file."""
    for theirs, ours in _EMBEDDINGS.items():
        yield ours, f"embeddings.{theirs}"
    for layer in range(layers):
        for theirs, ours in _LAYER.items():
            yield f"blk.{layer}.{ours}", f"encoder.layer.{layer}.{theirs}"
