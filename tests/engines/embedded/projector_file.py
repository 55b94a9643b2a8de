"""A projector for images with random weights, as a GGUF file that llama.cpp loads: a tiny CLIP encoder of LLaVA.

An image becomes 16 embeddings, whatever its size.
"""

import math
import random
import struct
from collections.abc import Iterator
from pathlib import Path

from antiphon.engines.embedded.bert_converter import GgufTensor, GgufValue, write_gguf

IMAGE_TOKENS = 16
_BLOCKS, _WIDTH, _INNER_WIDTH, _PATCH_SIZE, _IMAGE_SIZE = 2, 16, 32, 8, 32
_METADATA: dict[str, GgufValue] = {
    "general.architecture": "clip",
    "clip.has_vision_encoder": True,
    "clip.projector_type": "mlp",
    "clip.use_gelu": True,
    "clip.vision.image_size": _IMAGE_SIZE,
    "clip.vision.patch_size": _PATCH_SIZE,
    "clip.vision.embedding_length": _WIDTH,
    "clip.vision.feed_forward_length": _INNER_WIDTH,
    "clip.vision.block_count": _BLOCKS,
    "clip.vision.attention.head_count": 2,
    "clip.vision.attention.layer_norm_epsilon": 1e-5,
    "clip.vision.image_mean": [0.5, 0.5, 0.5],
    "clip.vision.image_std": [0.5, 0.5, 0.5],
}


def write_projector(path: Path, width: int) -> Path:
    """Write a projector for a model whose embeddings have `width` dimensions."""
    numbers = random.Random(1)
    tensors = []
    for name, shape in _list_shapes(width):
        count = math.prod(shape)
        data = struct.pack(f"<{count}f", *(numbers.uniform(-0.1, 0.1) for _ in range(count)))
        tensors.append(GgufTensor(name=name, shape=shape, data=data, half_precision=name == "v.patch_embd.weight"))
    with path.open("wb") as file:
        write_gguf(file, {**_METADATA, "clip.vision.projection_dim": width}, tensors)
    return path


def _list_shapes(width: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield "v.class_embd", (_WIDTH,)
    yield "v.patch_embd.weight", (_WIDTH, 3, _PATCH_SIZE, _PATCH_SIZE)
    yield "v.position_embd.weight", (IMAGE_TOKENS + 1, _WIDTH)
    yield from _list_layer("v.pre_ln", (_WIDTH,))
    for block in range(_BLOCKS):
        for name in ("attn_q", "attn_k", "attn_v", "attn_out"):
            yield from _list_layer(f"v.blk.{block}.{name}", (_WIDTH, _WIDTH))
        for name in ("ln1", "ln2"):
            yield from _list_layer(f"v.blk.{block}.{name}", (_WIDTH,))
        yield from _list_layer(f"v.blk.{block}.ffn_up", (_INNER_WIDTH, _WIDTH))
        yield from _list_layer(f"v.blk.{block}.ffn_down", (_WIDTH, _INNER_WIDTH))
    yield from _list_layer("mm.0", (width, _WIDTH))
    yield from _list_layer("mm.2", (width, width))


def _list_layer(name: str, shape: tuple[int, ...]) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield f"{name}.weight", shape
    yield f"{name}.bias", shape[:1]
