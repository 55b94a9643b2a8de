"""The graph of a BERT encoder, from the tensors of a GGUF file. Imports OpenVINO, which only the child process may."""

import mmap
from pathlib import Path
from typing import Any

import openvino as ov
from openvino import opset13 as ops

from antiphon.engines.gguf import GgufContent

TYPES = {0: ov.Type.f32, 1: ov.Type.f16}  # by GGUF type


def build_bert(path: Path, content: GgufContent) -> Any:
    """Return a model with the inputs and the output of an exported one."""
    inputs = [ops.parameter([-1, -1], ov.Type.i64, name=name) for name in ("input_ids", "attention_mask")]
    for each in inputs:
        each.output(0).set_names({each.friendly_name})
    hidden = _BertGraph(path, content).encode(*inputs)
    hidden.output(0).set_names({"last_hidden_state"})
    return ov.Model([hidden], inputs, "bert")


class _BertGraph:
    def __init__(self, path: Path, content: GgufContent) -> None:
        with path.open("rb") as file:
            self._data = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        self._tensors = content.tensors
        settings = content.settings
        self._layers: int = settings["bert.block_count"]
        self._heads: int = settings["bert.attention.head_count"]
        self._size: int = settings["bert.embedding_length"]
        self._epsilon: float = settings["bert.attention.layer_norm_epsilon"]

    def encode(self, ids: Any, mask: Any) -> Any:
        positions = ops.range(
            _scalar(0), ops.gather(ops.shape_of(ids), _scalar(1), _scalar(0)), _scalar(1), output_type="i64"
        )
        added = ops.add(
            ops.gather(self._load("position_embd.weight"), positions, _scalar(0)),
            ops.gather(self._load("token_types.weight"), _scalar(0), _scalar(0)),
        )
        words = ops.gather(self._load("token_embd.weight"), ids, _scalar(0))
        hidden = self._normalise("token_embd_norm", ops.add(words, added))
        allowed = ops.unsqueeze(ops.convert(mask, ov.Type.boolean), _vector(1, 2))
        for layer in range(self._layers):
            hidden = self._add_layer(f"blk.{layer}", hidden, allowed)
        return hidden

    def _add_layer(self, name: str, hidden: Any, allowed: Any) -> Any:
        queries, keys, values = (
            ops.transpose(
                ops.reshape(self._multiply(f"{name}.attn_{part}", hidden), _vector(0, 0, self._heads, -1), True),
                _vector(0, 2, 1, 3),
            )
            for part in "qkv"
        )
        heads = ops.scaled_dot_product_attention(queries, keys, values, allowed, causal=False)
        joined = ops.reshape(ops.transpose(heads, _vector(0, 2, 1, 3)), _vector(0, 0, self._size), True)
        attended = ops.add(self._multiply(f"{name}.attn_output", joined), hidden)
        hidden = self._normalise(f"{name}.attn_output_norm", attended)
        inner = ops.gelu(self._multiply(f"{name}.ffn_up", hidden), "erf")
        return self._normalise(f"{name}.layer_output_norm", ops.add(self._multiply(f"{name}.ffn_down", inner), hidden))

    def _multiply(self, name: str, value: Any) -> Any:
        product = ops.matmul(value, self._load(f"{name}.weight"), False, True)
        return ops.add(product, self._load(f"{name}.bias"))

    def _normalise(self, name: str, value: Any) -> Any:
        scaled = ops.mvn(value, _vector(-1), True, self._epsilon, "inside_sqrt")
        return ops.add(ops.multiply(scaled, self._load(f"{name}.weight")), self._load(f"{name}.bias"))

    def _load(self, name: str) -> Any:
        entry = self._tensors[name]
        tensor = ov.Tensor(TYPES[entry.kind], ov.Shape(entry.shape))
        tensor.data.reshape(-1).view("u1")[:] = self._data[entry.offset : entry.offset + tensor.byte_size]
        return ops.convert(ops.constant(tensor), ov.Type.f32)


def _scalar(number: int) -> Any:
    return ops.constant(number, ov.Type.i64)


def _vector(*numbers: int) -> Any:
    return ops.constant([*numbers], ov.Type.i64)
