"""A meaningless model whose vocabulary contains the control tokens of all families, for llama.cpp's tokenizer.

Control strings alternate between control tokens and user-defined tokens, which llama.cpp recognises in any text. All
other tokens are bytes.
"""

import math
from pathlib import Path

from antiphon.engines.embedded.bert_converter import GgufTensor, GgufValue, write_gguf
from antiphon.render.control_token_escape import CONTROL_STRINGS

WIDTH, HIDDEN, CONTEXT = 32, 32, 32_768
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, BYTE = 1, 2, 3, 4, 6
BASE_TOKENS = ("<unk>", "<s>", "</s>")
FIRST_SPECIAL = len(BASE_TOKENS) + 256  # id of the first special token after the base tokens and bytes


def list_control_strings() -> list[str]:
    """Return all control strings; a prefix of many strings is completed to one of them."""
    return sorted({complete_prefix(text) for text in CONTROL_STRINGS} - {*BASE_TOKENS})


def complete_prefix(text: str) -> str:
    if text == "]<]":
        return "]<]image[>["
    if text[-1] in ">][" or text == "｜DSML｜":
        return text
    return f"{text}7{'|>' if text[:2] == '<|' else '｜>' if text[:2] == '<｜' else ']' if text[0] == '[' else '>'}"


def make_model(path: Path, template: str) -> None:
    special = list_control_strings()
    tokens = [*BASE_TOKENS, *(f"<0x{byte:02X}>" for byte in range(256)), *special]
    kinds = [UNKNOWN, CONTROL, CONTROL, *[BYTE] * 256, *((CONTROL, USER_DEFINED)[at % 2] for at in range(len(special)))]
    settings: dict[str, GgufValue] = {
        "general.architecture": "llama",
        "general.name": "Babel",
        "llama.context_length": CONTEXT,
        "llama.embedding_length": WIDTH,
        "llama.block_count": 1,
        "llama.feed_forward_length": HIDDEN,
        "llama.attention.head_count": 1,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.rope.dimension_count": WIDTH,
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": kinds,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.add_space_prefix": False,
        "tokenizer.chat_template": template,
    }
    with path.open("wb") as file:
        write_gguf(file, settings, _tensors(len(tokens)))


def _tensors(vocabulary_size: int) -> list[GgufTensor]:
    block = {
        "attn_norm": (WIDTH,),
        "attn_q": (WIDTH, WIDTH),
        "attn_k": (WIDTH, WIDTH),
        "attn_v": (WIDTH, WIDTH),
        "attn_output": (WIDTH, WIDTH),
        "ffn_norm": (WIDTH,),
        "ffn_gate": (HIDDEN, WIDTH),
        "ffn_up": (HIDDEN, WIDTH),
        "ffn_down": (WIDTH, HIDDEN),
    }
    shapes: dict[str, tuple[int, ...]] = {
        "token_embd": (vocabulary_size, WIDTH),
        "output_norm": (WIDTH,),
        **{f"blk.0.{name}": shape for name, shape in block.items()},
    }
    return [_zeros(f"{name}.weight", shape) for name, shape in shapes.items()]


def _zeros(name: str, shape: tuple[int, ...]) -> GgufTensor:
    return GgufTensor(name=name, shape=shape, data=bytes(4 * math.prod(shape)))
