"""Embedding requests, and the encodings of a vector: numbers, base64 and raw bytes.

In base64 and bytes a number is a little-endian 32-bit float, as the SDKs expect. Raw bytes are described by metadata in
a header, in the format of vLLM.
"""

import json
import sys
from array import array
from base64 import b64encode
from collections.abc import Sequence
from itertools import accumulate
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from antiphon.errors import UnsupportedParameter, invalid_value
from antiphon.limits import Limits
from antiphon.protocol.decoding.codec import RequestDecoder, decode_object
from antiphon.protocol.types.tools import Json

TokenId = Annotated[int, Meta(ge=0, le=2**31 - 1)]
EncodingFormat = Literal["float", "base64", "bytes", "bytes_only"]
Inputs = list[str | list[int]]

MAX_HEADER_VECTORS = 64  # vectors that the metadata header can describe: clients accept about 8 KB of header
NUMBER_BYTES = 4

_encoder = msgspec.json.Encoder()

# Fields of vLLM that would change a vector, and for each the values that have no effect here.
_NEUTRAL_VALUES: dict[str, tuple[Any, ...]] = {
    "add_special_tokens": (True,),
    "embed_dtype": ("float32",),
    "endianness": ("native", "little"),
    "messages": (),
    "padding": ("do_not_pad",),
    "truncation_side": ("right",),
    "use_activation": (True,),
}


class CreateEmbedding(Struct, kw_only=True):
    """A request for embeddings. `input` is a text, a list of texts, a list of token ids, or a list of such lists."""

    model: str
    input: str | list[str | TokenId | list[TokenId]]
    encoding_format: EncodingFormat = "float"
    dimensions: Annotated[int, Meta(ge=1, le=65_536)] | None = None
    truncate_prompt_tokens: Annotated[int, Meta(ge=-1)] | None = None
    user: str | None = None
    add_special_tokens: Any = None
    embed_dtype: Any = None
    endianness: Any = None
    messages: Any = None
    padding: Any = None
    truncation_side: Any = None
    use_activation: Any = None


class Embedding(Struct, kw_only=True):
    object: Literal["embedding"] = "embedding"
    index: int
    embedding: list[float] | str


class EmbeddingUsage(Struct, kw_only=True):
    prompt_tokens: int
    total_tokens: int


class EmbeddingList(Struct, kw_only=True):
    """The list of embeddings; `id` and `created` are extensions of vLLM."""

    id: str
    object: Literal["list"] = "list"
    created: int
    model: str
    data: list[Embedding]
    usage: EmbeddingUsage


_decoder = RequestDecoder(CreateEmbedding)


def decode_embedding(body: bytes, limits: Limits) -> tuple[CreateEmbedding, list[str]]:
    """Return the request and the names of unknown fields."""
    raw = decode_object(body, limits)
    _check_count(raw.get("input"), limits)
    request, ignored = _decoder.convert(raw, len(body), limits)
    for name, neutral in sorted(_NEUTRAL_VALUES.items()):
        if (value := getattr(request, name)) is not None and value not in neutral:
            raise UnsupportedParameter(f"This value of '{name}' is not supported.", param=name)
    _check_uniform(request.input)
    if request.truncate_prompt_tokens == 0:
        raise invalid_value("truncate_prompt_tokens", "it must be -1 (as many as the model takes) or at least 1")
    if request.encoding_format == "bytes" and len(list_inputs(request)) > MAX_HEADER_VECTORS:
        raise invalid_value(
            "encoding_format", f"'bytes' supports at most {MAX_HEADER_VECTORS} inputs; use 'bytes_only'"
        )
    return request, ignored


def list_inputs(request: CreateEmbedding) -> Inputs:
    """Return the inputs as a list, one for each vector."""
    value = request.input
    if isinstance(value, str):
        return [value]
    tokens = [entry for entry in value if isinstance(entry, int)]
    return [tokens] if tokens else [entry for entry in value if not isinstance(entry, int)]


def encode_vectors(
    request: CreateEmbedding, id: str, created: int, model: str, vectors: Sequence[Sequence[float]], tokens: int
) -> "EmbeddingReply":
    usage = EmbeddingUsage(prompt_tokens=tokens, total_tokens=tokens)
    if request.encoding_format in ("float", "base64"):
        convert = _to_base64 if request.encoding_format == "base64" else list[float]
        data = [Embedding(index=index, embedding=convert(vector)) for index, vector in enumerate(vectors)]
        embedding_list = EmbeddingList(id=id, created=created, model=model, data=data, usage=usage)
        return EmbeddingReply(_encoder.encode(embedding_list))
    body, header = b"".join(map(_to_bytes, vectors)), b""
    if request.encoding_format == "bytes":
        spans, counts = _make_spans(vectors), msgspec.to_builtins(usage)
        metadata = {"id": id, "created": created, "model": model, "data": spans, "usage": counts}
        # non-ASCII characters are escaped: a model name may contain them, a header may not
        header = json.dumps(metadata, separators=(",", ":")).encode("ascii")
    return EmbeddingReply(body, header)


class EmbeddingReply(Struct, frozen=True):
    body: bytes
    metadata: bytes | None = None  # header that describes a body of raw bytes; empty: no header is sent


def _to_bytes(vector: Sequence[float]) -> bytes:
    numbers = array("f", vector)
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers.tobytes()


def _to_base64(vector: Sequence[float]) -> str:
    return b64encode(_to_bytes(vector)).decode()


def _make_spans(vectors: Sequence[Sequence[float]]) -> list[Json]:
    """Return the position of each vector in the bytes."""
    ends = [*accumulate([NUMBER_BYTES * len(vector) for vector in vectors], initial=0)]
    return [
        {
            "index": index,
            "embed_dtype": "float32",
            "endianness": "little",
            "start": ends[index],
            "end": ends[index + 1],
            "shape": [len(vector)],
        }
        for index, vector in enumerate(vectors)
    ]


def _check_count(value: Any, limits: Limits) -> None:
    """Check the number of inputs before decoding. A list of numbers is one, which the model's context bounds."""
    if type(value) is not list:
        return
    if len(value) > limits.embedding_inputs and type(value[0]) is not int:
        raise invalid_value("input", f"it has {len(value)} inputs; at most {limits.embedding_inputs} are allowed")


def _check_uniform(value: str | list[Any]) -> None:
    if not value:
        raise invalid_value("input", "it must not be empty")
    if isinstance(value, str):
        return
    kinds = {type(entry) for entry in value}
    if len(kinds) > 1:
        raise invalid_value(
            "input", "it must be a string, a list of strings, a list of token ids, or a list of such lists"
        )
    for index, entry in enumerate(value):
        if entry in ("", []):
            raise invalid_value(f"input[{index}]", "it must not be empty")
