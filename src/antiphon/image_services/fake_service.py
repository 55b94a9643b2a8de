"""An image service without a model, for tests and demonstrations: it draws a pattern from the hash of the request.

The same request gives the same PNG. Marks in the prompt cause faults, as scripts of the fake engine do:

    [fake delay 2]      waits two seconds before each preview and the result
    [fake silence]      never answers
    [fake fail]         fails; after the first preview if previews were requested
    [fake busy], [fake down], [fake block]    overloaded, unavailable, refused by moderation
    [fake page]         returns something that is not an image
"""

import asyncio
import re
import struct
import zlib
from collections.abc import AsyncGenerator, Mapping
from hashlib import sha256
from typing import Final

from antiphon.config.image_settings import ImageServiceSpec
from antiphon.core.image_generation import GeneratedImage, ImageRequest, ImageResult, ImageUsage, PartialImage
from antiphon.egress import EgressClient
from antiphon.errors import Busy, EngineFailed, Unavailable
from antiphon.image_services.base import ImageService, ModerationBlocked, make_result, read_options
from antiphon.image_services.service_kinds import FAKE_TABLE

_MARK: Final = re.compile(r"\[fake (delay (\d{1,3}(?:\.\d{1,3})?)|silence|fail|busy|down|block|page)\]")
_DEFAULT_SIZE: Final = "256x256"
_CELLS: Final = 8  # cells of the pattern in each direction
_LABEL: Final = "The fake image service"
_MAX_PREVIEWS: Final = 3


class FakeImageService(ImageService):
    def __init__(self, spec: ImageServiceSpec, egress: EgressClient) -> None:
        self.name, self.timeout, self.slots = spec.name, spec.timeout, spec.slots
        self.models: Mapping[str, str] = spec.models or {"fake-image": "fake-image"}

    def check(self, request: ImageRequest, param: str) -> None:
        FAKE_TABLE.check(request, param, self.name)

    async def generate(self, request: ImageRequest) -> AsyncGenerator[PartialImage | ImageResult, None]:
        faults = {found[1].split()[0]: float(found[2] or 0) for found in _MARK.finditer(request.prompt)}
        _raise_fault(faults)
        for index in range(min(request.partial_images, _MAX_PREVIEWS)):
            await asyncio.sleep(faults.get("delay", 0))
            body = await asyncio.to_thread(draw_png, request, index, _CELLS >> (_MAX_PREVIEWS - 1 - index))
            yield PartialImage(index=index, body=body, options=read_options(body, request, None, _LABEL))
            if "fail" in faults:
                break
        await asyncio.sleep(faults.get("delay", 0))
        if "silence" in faults:
            await asyncio.Event().wait()
        if "fail" in faults:
            raise EngineFailed(f"{_LABEL} failed.")
        yield await asyncio.to_thread(_make_result, request, "page" in faults)


def _raise_fault(faults: Mapping[str, float]) -> None:
    if "busy" in faults:
        raise Busy(f"{_LABEL} is overloaded.", retry_after=1.0)
    if "down" in faults:
        raise Unavailable(f"{_LABEL} is not available now.", retry_after=1.0)
    if "block" in faults:
        raise ModerationBlocked(f"{_LABEL} refused this request.", param="prompt")


def _make_result(request: ImageRequest, is_page: bool) -> ImageResult:
    revised = _MARK.sub("", request.prompt).strip() or None
    bodies = [b"<html>" if is_page else draw_png(request, number) for number in range(request.n or 1)]
    images = [GeneratedImage(body=body, revised_prompt=revised) for body in bodies]
    text, sources = len(request.prompt) // 4 + 1, 64 * len(request.sources)
    usage = ImageUsage(
        input_tokens=text + sources,
        output_tokens=_CELLS * _CELLS * len(images),
        input_text_tokens=text,
        input_image_tokens=sources,
    )
    return make_result(images, request, None, usage, _LABEL)


def draw_png(request: ImageRequest, number: int, cells: int = _CELLS) -> bytes:
    """Draw a symmetrical pattern of two colours; fewer cells make a coarser one."""
    digest = sha256(f"{number} {request.prompt}".encode())
    for source in (*request.sources, *([] if request.mask is None else [request.mask])):
        digest.update(source.body)
    seed = digest.digest()
    size = request.size if request.size not in (None, "auto") else _DEFAULT_SIZE
    width, height = map(int, (size or _DEFAULT_SIZE).split("x"))
    bits = int.from_bytes(seed[6:14], "big")
    rows = [
        bytes([bits >> (row * cells + min(x, cells - 1 - x)) & 1 for x in [at * cells // width for at in range(width)]])
        for row in range(cells)
    ]
    pixels = b"".join([b"\0" + rows[at * cells // height] for at in range(height)])  # each row begins with its filter
    alpha = _make_chunk(b"tRNS", b"\0\xff") if request.background == "transparent" else b""
    header = struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)  # eight bits per pixel, with a palette
    chunks = [_make_chunk(b"IHDR", header), _make_chunk(b"PLTE", seed[:6]), alpha]
    chunks += [_make_chunk(b"IDAT", zlib.compress(pixels, 1)), _make_chunk(b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


def _make_chunk(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
