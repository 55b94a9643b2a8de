"""Makes a GGUF file of a BERT that embeds sentences, as sentence-transformers keeps it.

It needs nothing that is not installed: safetensors are easy to read, GGUF is easy to write. Matrices are kept in 16
bits, which changes an embedding in the sixth digit of its cosine.
"""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from msgspec import DecodeError, Struct
from msgspec.json import decode

from antiphon.engines.llamacpp.gguf_file import Tensor, Value, write
from antiphon.engines.llamacpp.safetensors import Tensors
from antiphon.errors import StartupError

CONFIG, WEIGHTS, WORDS = "config.json", "model.safetensors", "vocab.txt"
FILES = (CONFIG, WEIGHTS, WORDS)

MEAN_POOLING = 1
NORMAL, CONTROL = 1, 3  # kinds of tokens
HALF = 1  # kind of file
SPECIAL = {
    "padding": "[PAD]", "unknown": "[UNK]", "bos": "[CLS]", "cls": "[CLS]", "eos": "[SEP]", "seperator": "[SEP]",
    "mask": "[MASK]",
}  # fmt: skip

_EMBEDDINGS = {
    "word_embeddings": "token_embd",
    "position_embeddings": "position_embd",
    "token_type_embeddings": "token_types",
    "LayerNorm": "token_embd_norm",
}
_LAYER = {
    "attention.self.query": "attn_q",
    "attention.self.key": "attn_k",
    "attention.self.value": "attn_v",
    "attention.output.dense": "attn_output",
    "attention.output.LayerNorm": "attn_output_norm",
    "intermediate.dense": "ffn_up",
    "output.dense": "ffn_down",
    "output.LayerNorm": "layer_output_norm",
}
_EXACT = frozenset({"position_embd.weight", "token_types.weight"})  # llama.cpp wants them in 32 bits


class _Config(Struct, frozen=True):
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    max_position_embeddings: int
    type_vocab_size: int
    layer_norm_eps: float


def convert(folder: Path, name: str, target: Path, tell: Callable[[int, int], None]) -> None:
    """From FILES in the folder. `tell` hears how many bytes of how many are written."""
    try:
        config = decode((folder / CONFIG).read_bytes(), type=_Config)
        words = (folder / WORDS).read_text("utf-8").removesuffix("\n").split("\n")
        tensors = list(_tensors(Tensors(folder / WEIGHTS), config.num_hidden_layers))
        settings = {**_settings(config, name), **_vocabulary(words, config.type_vocab_size)}
        whole = sum([tensor.bytes for tensor in tensors])
        with target.open("wb") as file:
            write(file, settings, tensors, lambda done: tell(min(done, whole), whole))
    except (DecodeError, KeyError, UnicodeDecodeError, ValueError) as error:
        raise StartupError(f"The files of {name} are not those of a sentence encoder: {error}.") from None


def _settings(config: _Config, name: str) -> dict[str, Value]:
    return {
        "general.architecture": "bert",
        "general.name": name,
        "general.file_type": HALF,
        "bert.context_length": config.max_position_embeddings,
        "bert.embedding_length": config.hidden_size,
        "bert.feed_forward_length": config.intermediate_size,
        "bert.block_count": config.num_hidden_layers,
        "bert.attention.head_count": config.num_attention_heads,
        "bert.attention.layer_norm_epsilon": config.layer_norm_eps,
        "bert.attention.causal": False,
        "bert.pooling_type": MEAN_POOLING,
    }


def _vocabulary(words: list[str], types: int) -> dict[str, Value]:
    """llama.cpp writes a word's beginning as SentencePiece does, where BERT marks its continuation."""
    special = set(SPECIAL.values())
    tokens = [word if word in special else _piece(word) for word in words]
    kinds = [CONTROL if word in special else NORMAL for word in words]
    ids = {f"tokenizer.ggml.{name}_token_id": words.index(word) for name, word in SPECIAL.items()}
    return {
        "tokenizer.ggml.model": "bert",
        "tokenizer.ggml.token_type_count": types,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": kinds,
        **ids,
    }


def _piece(word: str) -> str:
    return word[2:] if word.startswith("##") else f"\u2581{word}"


def _tensors(found: Tensors, layers: int) -> Iterator[Tensor]:
    for ours, theirs in _names(layers):
        for leaf in ("weight", "bias"):
            stored = f"{theirs}.{leaf}"
            if stored not in found.places and leaf == "bias":
                continue
            place = found.places[stored]
            if place.dtype != "F32":
                raise ValueError(f"{stored} is of the type {place.dtype}")
            name = f"{ours}.{leaf}"
            half = len(place.shape) > 1 and name not in _EXACT
            yield Tensor(name=name, shape=place.shape, read=partial(found.read, stored), half=half)


def _names(layers: int) -> Iterator[tuple[str, str]]:
    """What llama.cpp calls each, and what it is called in the file."""
    for theirs, ours in _EMBEDDINGS.items():
        yield ours, f"embeddings.{theirs}"
    for layer in range(layers):
        for theirs, ours in _LAYER.items():
            yield f"blk.{layer}.{ours}", f"encoder.layer.{layer}.{theirs}"
