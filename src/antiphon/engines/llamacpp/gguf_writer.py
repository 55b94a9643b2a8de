"""Writes GGUF files, the format of llama.cpp's models; `engines/gguf.py` reads them.

A GGUF file consists of the metadata, the position of each tensor, and the tensors, written one at a time. The same
input gives the same bytes, so that a converted file can be verified by its hash.
"""

import struct
from collections.abc import Callable, Sequence
from typing import BinaryIO

from msgspec import Struct

GGUF_VERSION = 3
ALIGNMENT = 32
BLOCK_BYTES = 256 * 1024
F32, F16 = 0, 1

GgufValue = str | bool | int | float | Sequence[str] | Sequence[int]


class GgufTensor(Struct, frozen=True, kw_only=True):
    """A tensor to write.

    `read` returns its numbers as little-endian 32-bit floats; `shape` is in the order of torch, slowest dimension
    first.
    """

    name: str
    shape: tuple[int, ...]
    read: Callable[[], bytes]
    half_precision: bool = False  # stored in 16 bits

    @property
    def bytes(self) -> int:
        size = 2 if self.half_precision else 4
        for length in self.shape:
            size *= length
        return size


def write_gguf(
    file: BinaryIO, metadata: dict[str, GgufValue], tensors: Sequence[GgufTensor], on_written: Callable[[int], None]
) -> None:
    """Write the file; `on_written` receives the number of tensor bytes after each tensor."""
    head = b"GGUF" + struct.pack("<IQQ", GGUF_VERSION, len(tensors), len(metadata))
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
        data = _to_half(tensor.read()) if tensor.half_precision else tensor.read()
        if len(data) != tensor.bytes:
            raise ValueError(f"{tensor.name} has {len(data)} bytes instead of {tensor.bytes}")
        offset += file.write(data + bytes(_align(len(data)) - len(data)))
        on_written(offset)


def _align(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def _to_half(data: bytes) -> bytes:
    """Convert to 16-bit floats, one block at a time: as Python objects the numbers take eight times the memory."""
    return b"".join([_to_half_block(data[at : at + BLOCK_BYTES]) for at in range(0, len(data), BLOCK_BYTES)])


def _to_half_block(data: bytes) -> bytes:
    count = len(data) // 4
    return struct.pack(f"<{count}e", *struct.unpack(f"<{count}f", data))


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
        case _:
            return struct.pack("<I", 9) + _pack_array(value)


def _pack_array(values: Sequence[str] | Sequence[int]) -> bytes:
    texts = [value for value in values if isinstance(value, str)]
    if texts:
        return struct.pack("<IQ", 8, len(texts)) + b"".join([_pack_text(text) for text in texts])
    return struct.pack(f"<IQ{len(values)}i", 5, len(values), *values)
