"""A shallow copy of the built-in model, for tests of everything but its words: two of its layers, and all of the rest.

Vocabulary, chat template and weights of the file are those of the model, so it is loaded, prompted, constrained and
cancelled alike. It reads a prompt in a tenth of the CPU time, and writes in a third.
"""

import struct
from pathlib import Path

import pytest

from antiphon.config.base_folders import cache_home
from antiphon.engines.embedded.known_models import DEFAULT_MODEL
from antiphon.engines.embedded.model_files import fetch_model
from antiphon.engines.gguf import DEFAULT_ALIGNMENT, GgufTensorEntry, read_content

LAYERS = 2
_LAYERS_KEY = b"llama.block_count"
_TENSOR_COUNT_AT = 8


@pytest.fixture(scope="session")
def shallow_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    source = fetch_model(DEFAULT_MODEL, cache_home())
    target = tmp_path_factory.mktemp("models") / source.name
    target.write_bytes(_drop_layers(source))
    return target


def _drop_layers(source: Path) -> bytes:
    data, tensors = source.read_bytes(), read_content(source).tensors
    kept = {name: tensor for name, tensor in tensors.items() if not _is_dropped(name)}
    head = bytearray(data[: data.index(_pack_text(next(iter(tensors))))])  # the settings
    struct.pack_into("<Q", head, _TENSOR_COUNT_AT, len(kept))
    struct.pack_into("<I", head, head.index(_LAYERS_KEY) + len(_LAYERS_KEY) + 4, LAYERS)
    ends = sorted([*(tensor.offset for tensor in tensors.values()), len(data)])
    body = bytearray()
    for name, tensor in kept.items():
        head += _pack_entry(name, tensor, len(body))
        body += data[tensor.offset : ends[ends.index(tensor.offset) + 1]]  # with its padding
    return bytes(head) + bytes(-len(head) % DEFAULT_ALIGNMENT) + body


def _is_dropped(name: str) -> bool:
    return name.startswith("blk.") and int(name.split(".")[1]) >= LAYERS


def _pack_entry(name: str, tensor: GgufTensorEntry, offset: int) -> bytes:
    lengths = struct.pack(f"<{len(tensor.shape)}Q", *reversed(tensor.shape))
    return _pack_text(name) + struct.pack("<I", len(tensor.shape)) + lengths + struct.pack("<IQ", tensor.kind, offset)


def _pack_text(text: str) -> bytes:
    return struct.pack("<Q", len(text)) + text.encode()
