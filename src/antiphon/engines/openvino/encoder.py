"""Computes embeddings and rankings with OpenVINO, in the child process: a GGUF file of a BERT encoder, or a folder.

Texts of a request are computed in groups of similar lengths, since a batch has the length of its longest text. OpenVINO
releases the GIL while it computes, so a thread does it, and the server goes on tokenizing.
"""

import asyncio
from base64 import b64encode
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import openvino as ov
from msgspec import Struct
from msgspec.json import Decoder
from openvino import opset13 as ops

from antiphon.engines.gguf import CLS, LAST, RANK, read_content
from antiphon.engines.openvino.bert_graph import build_bert
from antiphon.engines.openvino.launch import OpenVinoLaunch
from antiphon.engines.openvino.server import RequestError
from antiphon.engines.openvino.turns import Turns
from antiphon.engines.openvino.wordpiece import WordPiece
from antiphon.http_server.http_exchange import HttpExchange

DEVICE = "CPU"
MODEL_FILE = "openvino_model.xml"
MIN_SHARE = 0.7  # of the longest text of a group; the rest of a shorter one is padding
VECTORS = ("sentence_embedding", "last_hidden_state", "token_embeddings")  # outputs: of a text, or of each token
INPUTS = ("input_ids", "attention_mask", "token_type_ids")


class EncodeBody(Struct):
    """Body of /v1/embeddings."""

    input: list[list[int]]
    first_length: int | None = None  # tokens of the first one of two texts, which all inputs have in common


class Tokenizer(Protocol):
    def encode(self, text: str, add_special: bool = False) -> list[int]: ...

    def decode(self, ids: Sequence[int]) -> str: ...


class FolderTokenizer:
    def __init__(self, folder: Path) -> None:
        import openvino_genai as genai  # slow to import, and only needed here

        self._tokenizer = genai.Tokenizer(folder)

    def encode(self, text: str, add_special: bool = False) -> list[int]:
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=add_special).input_ids.data[0].tolist()
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        text: str = self._tokenizer.decode([*ids], skip_special_tokens=False)
        return text


class EncoderModel:
    """A loaded encoder: one vector for each input, which is the score if the model ranks."""

    def __init__(self, launch: OpenVinoLaunch) -> None:
        path = Path(launch.model)
        self._tokenizer: Tokenizer
        if path.is_dir():
            self._tokenizer, model = FolderTokenizer(path), ov.Core().read_model(path / MODEL_FILE)
        else:
            content = read_content(path)
            self._tokenizer, model = WordPiece(content), build_bert(path, content)
        self._inputs = [name for name in INPUTS if any(name in each.names for each in model.inputs)]
        if len(self._inputs) < len(model.inputs):
            raise ValueError(f"it takes other inputs than {', '.join(INPUTS)}")
        properties = {
            "INFERENCE_NUM_THREADS": launch.threads,
            "INFERENCE_PRECISION_HINT": "f32",  # 16 bits, where CPUs have them, would make vectors differ
            "NUM_STREAMS": 1,
            "ENABLE_CPU_PINNING": False,  # children of other models would use the same cores
        }
        self._request = ov.compile_model(_add_head(model, launch.pooling), DEVICE, properties).create_infer_request()
        self._turns = Turns()
        self._body = Decoder(EncodeBody)

    def encode(self, text: str, add_special: bool = False) -> list[int]:
        return self._tokenizer.encode(text, add_special)

    def detokenize(self, tokens: list[int]) -> str:
        return self._tokenizer.decode(tokens)

    async def run(self) -> None:
        await asyncio.Event().wait()

    async def answer(self, path: str, body: bytes, exchange: HttpExchange) -> Any:
        if path != "/v1/embeddings":
            raise RequestError(f"there is no path {path}")
        request = self._body.decode(body)
        vectors: dict[int, bytes] = {}
        for group in group_by_length([len(row) for row in request.input]):
            async with self._turns.take(len(group) * len(request.input[group[0]])):
                if exchange.gone:
                    return None
                found = await asyncio.to_thread(self._compute, request, group)
            vectors |= dict(zip(group, found, strict=True))
        return {"data": [{"index": at, "embedding": b64encode(vector).decode()} for at, vector in vectors.items()]}

    def _compute(self, request: EncodeBody, group: Sequence[int]) -> list[bytes]:
        rows = [request.input[at] for at in group]
        tensors = {name: ov.Tensor(ov.Type.i64, ov.Shape([len(rows), len(rows[0])])) for name in INPUTS}
        ids, mask, types = (tensor.data for tensor in tensors.values())
        ids[:] = mask[:] = types[:] = 0
        for number, row in enumerate(rows):
            ids[number, : len(row)] = row
            mask[number, : len(row)] = 1
            if request.first_length is not None:
                types[number, request.first_length : len(row)] = 1
        self._request.infer({name: tensors[name] for name in self._inputs})
        return [vector.tobytes() for vector in self._request.get_output_tensor().data]


def group_by_length(lengths: Sequence[int]) -> Iterator[list[int]]:
    """Yield groups of the positions of texts, longest first."""
    group: list[int] = []
    for at in sorted(range(len(lengths)), key=lambda at: -lengths[at]):
        if group and lengths[at] < MIN_SHARE * lengths[group[0]]:
            yield group
            group = []
        group.append(at)
    if group:
        yield group


def _add_head(model: Any, pooling: int | None) -> Any:
    """Return the model with one output: scores, or the normalised vectors of whole texts."""
    outputs = {name: result.input_value(0) for result in model.get_results() for name in result.output(0).names}
    if pooling == RANK:
        if "logits" not in outputs or outputs["logits"].partial_shape[-1] != 1:
            raise ValueError("it does not return one score for each text")
        return ov.Model([outputs["logits"]], model.get_parameters(), "ranking")
    found = next((name for name in VECTORS if name in outputs), None)
    if found is None:
        raise ValueError(f"it returns no vectors, but {', '.join(sorted(outputs))}")
    pooled = outputs[found]
    if found != VECTORS[0]:
        pooled = _pool(pooled, model.input("attention_mask"), pooling)
    axis, epsilon = ops.constant([1], ov.Type.i64), 1e-12
    return ov.Model([ops.normalize_l2(pooled, axis, epsilon, "max")], model.get_parameters(), "embedding")


def _pool(hidden: Any, mask: Any, pooling: int | None) -> Any:
    axis = ops.constant(1, ov.Type.i64)
    if pooling == CLS:
        return ops.gather(hidden, ops.constant(0, ov.Type.i64), axis)
    if pooling == LAST:
        return ops.gather(hidden, ops.subtract(ops.reduce_sum(mask, axis), axis), axis, batch_dims=1)
    weights = ops.unsqueeze(ops.convert(mask, ov.Type.f32), ops.constant(2, ov.Type.i64))
    return ops.divide(ops.reduce_sum(ops.multiply(hidden, weights), axis), ops.reduce_sum(weights, axis))
