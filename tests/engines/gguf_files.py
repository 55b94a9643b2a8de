"""Builder of small GGUF files: complete, and easy to damage."""

import struct
from typing import Any

TOKENS = ["<unk>", "<s>", "</s>", "<|im_start|>", "<tool_call>", "  ", "a"]
TOKEN_TYPES = [2, 3, 3, 3, 4, 4, 1]

METADATA: dict[str, Any] = {
    "general.architecture": "llama",
    "general.name": "Tiny",
    "llama.context_length": 2048,
    "llama.rope": 0.5,
    "tokenizer.ggml.tokens": TOKENS,
    "tokenizer.ggml.token_type": TOKEN_TYPES,
    "tokenizer.ggml.merges": ["a b"] * 10,
    "tokenizer.ggml.bos_token_id": 1,
    "tokenizer.ggml.eos_token_id": 2,
    "tokenizer.ggml.add_bos_token": True,
    "tokenizer.chat_template": "{{ messages }}",
}


def make_gguf(metadata: dict[str, Any] | None = None, *, version: int = 3) -> bytes:
    metadata = METADATA if metadata is None else metadata
    tensor = _pack_text("token_embd.weight") + struct.pack("<IQIQ", 1, 32, 0, 0)
    body = b"".join(_pack_text(key) + _pack_value(value) for key, value in metadata.items())
    head = b"GGUF" + struct.pack("<IQQ", version, 1, len(metadata)) + body + tensor
    return head + bytes(-len(head) % 32) + bytes(128)


def _pack_text(text: str) -> bytes:
    return struct.pack("<Q", len(text.encode())) + text.encode()


def _pack_value(value: Any) -> bytes:
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
            return struct.pack("<IIQ", 9, 8, len(value)) + b"".join(map(_pack_text, value))
        case list():
            return struct.pack(f"<IIQ{len(value)}i", 9, 5, len(value), *value)
    raise TypeError(value)
