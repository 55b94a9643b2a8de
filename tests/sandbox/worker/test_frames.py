"""Frames between the processes of the sandbox."""

import asyncio
import socket
import struct

import pytest

from antiphon.sandbox.worker import frames


async def _read(data: bytes) -> frames.Frame | None:
    reader = asyncio.StreamReader()
    reader.feed_data(data)
    reader.feed_eof()
    return await frames.read(reader)


def test_a_frame_is_read_as_it_was_written() -> None:
    data = frames.pack({"a": "é\n", "b": [1]}, b"\0\xff")
    assert asyncio.run(_read(data)) == ({"a": "é\n", "b": [1]}, b"\0\xff")
    left, right = socket.socketpair()
    with left, right:
        left.sendall(data)
        assert frames.receive(right) == ({"a": "é\n", "b": [1]}, b"\0\xff")


def test_half_a_frame_is_the_end() -> None:
    assert asyncio.run(_read(frames.pack({"a": 1}, b"xyz")[:-1])) is None


@pytest.mark.parametrize(
    "data",
    [struct.pack(">II", 1 << 31, 0), struct.pack(">II", 2, 1 << 31) + b"{}", struct.pack(">II", 2, 0) + b"[]",
     struct.pack(">II", 1, 0) + b"{", struct.pack(">II", 200_000, 0) + b"[" * 200_000],
)  # fmt: skip
def test_a_frame_that_is_too_large_or_no_object_is_an_error(data: bytes) -> None:
    with pytest.raises(frames.InvalidFrame):
        asyncio.run(_read(data))
