"""Writes a GGUF file: settings, then where each tensor is, then the tensors, one at a time.

The same input gives the same bytes, so that a file that was made here can be known by its hash.
"""

import struct
from collections.abc import Callable, Sequence
from typing import BinaryIO

from msgspec import Struct

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
