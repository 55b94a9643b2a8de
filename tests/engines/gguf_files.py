"""GGUF files made by hand: small, whole, and easy to break."""

import struct
from typing import Any

TOKENS = ["<unk>", "<s>", "</s>", "<|im_start|>", "<tool_call>", "  ", "a"]
KINDS = [2, 3, 3, 3, 4, 4, 1]

PAIRS: dict[str, Any] = {
    "general.architecture": "llama",
    "general.name": "Tiny",
    "llama.context_length": 2048,
    "llama.rope": 0.5,
    "tokenizer.ggml.tokens": TOKENS,
    "tokenizer.ggml.token_type": KINDS,
    "tokenizer.ggml.merges": ["a b"] * 10,
    "tokenizer.ggml.bos_token_id": 1,
    "tokenizer.ggml.eos_token_id": 2,
    "tokenizer.ggml.add_bos_token": True,
    "tokenizer.chat_template": "{{ messages }}",
}


def gguf(pairs: dict[str, Any] | None = None, *, version: int = 3) -> bytes:
    pairs = PAIRS if pairs is None else pairs
    tensor = _text("token_embd.weight") + struct.pack("<IQIQ", 1, 32, 0, 0)
    body = b"".join(_text(key) + _typed(value) for key, value in pairs.items())
    head = b"GGUF" + struct.pack("<IQQ", version, 1, len(pairs)) + body + tensor
    return head + bytes(-len(head) % 32) + bytes(128)


def _text(text: str) -> bytes:
    return struct.pack("<Q", len(text.encode())) + text.encode()


def _typed(value: Any) -> bytes:
    match value:
        case bool():
            return struct.pack("<I?", 7, value)
        case int():
            return struct.pack("<II", 4, value)
        case float():
            return struct.pack("<If", 6, value)
        case str():
            return struct.pack("<I", 8) + _text(value)
        case [str(), *_]:
            return struct.pack("<IIQ", 9, 8, len(value)) + b"".join(map(_text, value))
        case list():
            return struct.pack(f"<IIQ{len(value)}i", 9, 5, len(value), *value)
    raise TypeError(value)
