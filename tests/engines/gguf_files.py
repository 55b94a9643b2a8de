"""Builder of small GGUF files: complete, and easy to damage."""

from io import BytesIO
from typing import Any

from antiphon.engines.embedded.bert_converter import GgufTensor, write_gguf

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
    tensor = GgufTensor(name="token_embd.weight", shape=(32,), data=bytes(128))
    file = BytesIO()
    write_gguf(file, METADATA if metadata is None else metadata, [tensor], version=version)
    return file.getvalue()
