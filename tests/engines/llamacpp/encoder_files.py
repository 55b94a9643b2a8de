"""The files of a tiny handmade sentence encoder."""

import json
import struct

VOCAB = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "sea", "##side", "\u2028"]
CONFIG = {
    "hidden_size": 2,
    "intermediate_size": 4,
    "num_hidden_layers": 1,
    "num_attention_heads": 1,
    "max_position_embeddings": 8,
    "type_vocab_size": 2,
    "layer_norm_eps": 1e-12,
}
LAYER = "encoder.layer.0."
SHAPES: dict[str, tuple[int, ...]] = {
    "embeddings.word_embeddings.weight": (8, 2),
    "embeddings.position_embeddings.weight": (8, 2),
    "embeddings.token_type_embeddings.weight": (2, 2),
    **{f"embeddings.LayerNorm.{leaf}": (2,) for leaf in ("weight", "bias")},
    **{
        f"{LAYER}{name}.{leaf}": shape if leaf == "weight" else shape[:1]
        for name, shape in {
            "attention.self.query": (2, 2),
            "attention.self.key": (2, 2),
            "attention.self.value": (2, 2),
            "attention.output.dense": (2, 2),
            "attention.output.LayerNorm": (2,),
            "intermediate.dense": (4, 2),
            "output.dense": (2, 4),
            "output.LayerNorm": (2,),
        }.items()
        for leaf in ("weight", "bias")
    },
    "pooler.dense.weight": (2, 2),  # ignored by the converter
}


def make_safetensors(kind: str = "F32") -> bytes:
    tensors, data = {}, b""
    for number, (name, shape) in enumerate(SHAPES.items()):
        size = 1
        for length in shape:
            size *= length
        values = struct.pack(f"<{size}f", *[number + at / 8 for at in range(size)])
        tensors[name] = {"dtype": kind, "shape": shape, "data_offsets": [len(data), len(data) + len(values)]}
        data += values
    header = json.dumps({"__metadata__": {"format": "pt"}, **tensors}).encode()
    return struct.pack("<Q", len(header)) + header + data


FILES = {
    "config.json": json.dumps({**CONFIG, "model_type": "bert"}).encode(),
    "vocab.txt": ("\n".join(VOCAB) + "\n").encode(),
    "model.safetensors": make_safetensors(),
}
