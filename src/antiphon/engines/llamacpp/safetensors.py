"""Reads a safetensors file: a length, a JSON object that says where each tensor lies, and the tensors.

The file is one that was fetched: whatever is wrong with it is a ValueError, before anything is read that is not there.
"""

from pathlib import Path

from msgspec import Struct, convert
from msgspec.json import decode

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
