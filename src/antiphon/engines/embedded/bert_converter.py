"""Converts a BERT sentence encoder, in the file format of sentence-transformers, to a GGUF file.

It needs no additional packages. A safetensors file consists of a length, a JSON object with the position of each
tensor, and the tensors; it is downloaded and not trusted, so it is mapped, and a tensor that is not completely inside
of it raises ValueError. A GGUF file consists of the metadata, the position of each tensor, and the tensors, written one
at a time; the same input gives the same bytes, so that a converted file can be verified by its hash. Matrices are
stored in 16 bits, which changes the cosine of embeddings in the sixth digit.
"""

import math
import mmap
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

from msgspec import DecodeError, Struct, convert
from msgspec.json import decode

from antiphon.errors import StartupError

CONFIG_FILE, WEIGHTS_FILE, VOCABULARY_FILE = "config.json", "model.safetensors", "vocab.txt"
FILES = (CONFIG_FILE, WEIGHTS_FILE, VOCABULARY_FILE)

MEAN_POOLING = 1
NORMAL_TOKEN, CONTROL_TOKEN = 1, 3  # GGUF token types
HALF_FILE_TYPE = 1  # GGUF file type: mostly 16-bit floats
SPECIAL_TOKENS = {
    "padding": "[PAD]", "unknown": "[UNK]", "bos": "[CLS]", "cls": "[CLS]", "eos": "[SEP]", "seperator": "[SEP]",
    "mask": "[MASK]",
}  # fmt: skip

_EMBEDDING_NAMES = {
    "word_embeddings": "token_embd",
    "position_embeddings": "position_embd",
    "token_type_embeddings": "token_types",
    "LayerNorm": "token_embd_norm",
}
_LAYER_NAMES = {
    "attention.self.query": "attn_q",
    "attention.self.key": "attn_k",
    "attention.self.value": "attn_v",
    "attention.output.dense": "attn_output",
    "attention.output.LayerNorm": "attn_output_norm",
    "intermediate.dense": "ffn_up",
    "output.dense": "ffn_down",
    "output.LayerNorm": "layer_output_norm",
}
_FULL_PRECISION = frozenset({"position_embd.weight", "token_types.weight"})  # llama.cpp requires them in 32 bits

GGUF_VERSION = 3
ALIGNMENT = 32
BLOCK_BYTES = 256 * 1024
F32, F16 = 0, 1

GgufValue = str | bool | int | float | Sequence[str] | Sequence[int] | Sequence[float]


class SafetensorsEntry(Struct, frozen=True, kw_only=True):
    """Entry of a tensor in the safetensors header."""

    dtype: str
    shape: tuple[int, ...]
    data_offsets: tuple[int, int]


def _map_safetensors(path: Path) -> tuple[dict[str, SafetensorsEntry], memoryview]:
    """Return the entries of the file by name, and the data that their offsets refer to. A slice ends with the file."""
    with path.open("rb") as file:
        data = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    end = 8 + int.from_bytes(data[:8], "little")
    header = decode(data[8:end], type=dict[str, object])
    return {name: convert(header[name], SafetensorsEntry) for name in header if name != "__metadata__"}, data[end:]


class GgufTensor(Struct, frozen=True, kw_only=True):
    """A tensor to write, as little-endian 32-bit floats; `shape` is in the order of torch, slowest dimension first."""

    name: str
    shape: tuple[int, ...]
    data: bytes | memoryview
    half_precision: bool = False  # stored in 16 bits

    @property
    def bytes(self) -> int:
        return math.prod(self.shape) * (2 if self.half_precision else 4)


def write_gguf(
    file: BinaryIO,
    metadata: Mapping[str, GgufValue],
    tensors: Sequence[GgufTensor],
    on_written: Callable[[int], None] = lambda written: None,
    version: int = GGUF_VERSION,
) -> None:
    """Write the file; `on_written` receives the number of tensor bytes after each tensor."""
    head = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(metadata))
    head += b"".join([_pack_text(key) + _pack_value(value) for key, value in metadata.items()])
    offset = 0
    for tensor in tensors:
        lengths = struct.pack(f"<{len(tensor.shape)}Q", *reversed(tensor.shape))
        head += _pack_text(tensor.name) + struct.pack("<I", len(tensor.shape)) + lengths
        head += struct.pack("<IQ", F16 if tensor.half_precision else F32, offset)
        offset += _align(tensor.bytes)
    file.write(head + bytes(_align(len(head)) - len(head)))
    offset = 0
    for tensor in tensors:
        data = _to_half(tensor.data) if tensor.half_precision else tensor.data
        if len(data) != tensor.bytes:
            raise ValueError(f"{tensor.name} has {len(data)} bytes instead of {tensor.bytes}")
        offset += file.write(data) + file.write(bytes(_align(len(data)) - len(data)))
        on_written(offset)


def _align(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def _to_half(data: bytes | memoryview) -> bytes:
    """Convert to 16-bit floats, one block at a time: as Python objects the numbers take eight times the memory."""
    blocks = [data[at : at + BLOCK_BYTES] for at in range(0, len(data), BLOCK_BYTES)]
    return b"".join([struct.pack(f"<{len(b) // 4}e", *struct.unpack(f"<{len(b) // 4}f", b)) for b in blocks])


def _pack_text(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def _pack_value(value: GgufValue) -> bytes:
    match value:
        case bool():
            return struct.pack("<I?", 7, value)
        case int():
            return struct.pack("<II", 4, value)
        case float():
            return struct.pack("<If", 6, value)
        case str():
            return struct.pack("<I", 8) + _pack_text(value)
        case [str(), *_]:
            return struct.pack("<IIQ", 9, 8, len(value)) + b"".join([_pack_text(str(text)) for text in value])
        case [float(), *_]:
            return struct.pack(f"<IIQ{len(value)}f", 9, 6, len(value), *value)
        case _:
            return struct.pack(f"<IIQ{len(value)}i", 9, 5, len(value), *value)


class _BertConfig(Struct, frozen=True):
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    max_position_embeddings: int
    type_vocab_size: int
    layer_norm_eps: float


def convert_bert(folder: Path, name: str, target: Path, report: Callable[[int, int], None]) -> None:
    """Convert the files in `FILES` of the folder; `report` receives the bytes written and the total."""
    try:
        config = decode((folder / CONFIG_FILE).read_bytes(), type=_BertConfig)
        vocabulary = (folder / VOCABULARY_FILE).read_text("utf-8").removesuffix("\n").split("\n")
        tensors = list(_convert_tensors(folder / WEIGHTS_FILE, config.num_hidden_layers))
        metadata = {**_model_metadata(config, name), **_vocabulary_metadata(vocabulary, config.type_vocab_size)}
        total = sum([tensor.bytes for tensor in tensors])
        with target.open("wb") as file:
            write_gguf(file, metadata, tensors, lambda done: report(min(done, total), total))
    except (DecodeError, KeyError, UnicodeDecodeError, ValueError) as error:
        raise StartupError(f"The files of {name} are not those of a sentence encoder: {error}.") from None


def _model_metadata(config: _BertConfig, name: str) -> dict[str, GgufValue]:
    return {
        "general.architecture": "bert",
        "general.name": name,
        "general.file_type": HALF_FILE_TYPE,
        "bert.context_length": config.max_position_embeddings,
        "bert.embedding_length": config.hidden_size,
        "bert.feed_forward_length": config.intermediate_size,
        "bert.block_count": config.num_hidden_layers,
        "bert.attention.head_count": config.num_attention_heads,
        "bert.attention.layer_norm_epsilon": config.layer_norm_eps,
        "bert.attention.causal": False,
        "bert.pooling_type": MEAN_POOLING,
    }


def _vocabulary_metadata(vocabulary: list[str], types: int) -> dict[str, GgufValue]:
    """Return the vocabulary with llama.cpp's marks: of starts of words, where BERT marks their continuation."""
    special = set(SPECIAL_TOKENS.values())
    pieces = [entry[2:] if entry.startswith("##") else f"\u2581{entry}" for entry in vocabulary]
    tokens = [entry if entry in special else piece for entry, piece in zip(vocabulary, pieces, strict=True)]
    token_types = [CONTROL_TOKEN if entry in special else NORMAL_TOKEN for entry in vocabulary]
    ids = {f"tokenizer.ggml.{name}_token_id": vocabulary.index(entry) for name, entry in SPECIAL_TOKENS.items()}
    return {
        "tokenizer.ggml.model": "bert",
        "tokenizer.ggml.token_type_count": types,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": token_types,
        **ids,
    }


def _convert_tensors(weights: Path, layers: int) -> Iterator[GgufTensor]:
    entries, data = _map_safetensors(weights)
    for gguf_name, bert_name in _tensor_names(layers):
        for leaf in ("weight", "bias"):
            stored = f"{bert_name}.{leaf}"
            if stored not in entries and leaf == "bias":
                continue
            entry = entries[stored]
            if entry.dtype != "F32":
                raise ValueError(f"{stored} must have the type F32, not {entry.dtype}")
            name = f"{gguf_name}.{leaf}"
            half = len(entry.shape) > 1 and name not in _FULL_PRECISION
            numbers = data[slice(*entry.data_offsets)]
            yield GgufTensor(name=name, shape=entry.shape, data=numbers, half_precision=half)


def _tensor_names(layers: int) -> Iterator[tuple[str, str]]:
    """Yield the name of each tensor in llama.cpp and in the safetensors file."""
    for bert_name, gguf_name in _EMBEDDING_NAMES.items():
        yield gguf_name, f"embeddings.{bert_name}"
    for layer in range(layers):
        for bert_name, gguf_name in _LAYER_NAMES.items():
            yield f"blk.{layer}.{gguf_name}", f"encoder.layer.{layer}.{bert_name}"
