"""Embeddings: what clients send, and the three ways of writing a vector: numbers, base64 and bare bytes.

In base64 and bytes a number is a little-endian 32-bit float, as the SDKs read it. Bytes are told about in a header, in
the shape of vLLM's.
"""

import json
import sys
from array import array
from base64 import b64encode
from collections.abc import Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from antiphon.errors import InvalidValue, UnsupportedParameter
from antiphon.limits import Limits
from antiphon.protocol.decoding.codec import Shape, decode_object
from antiphon.protocol.decoding.normalise import drop_nulls

TokenId = Annotated[int, Meta(ge=0, le=2**31 - 1)]
Written = Literal["float", "base64", "bytes", "bytes_only"]
Inputs = list[str | list[int]]

MOST_IN_A_HEADER = 64  # vectors that a header can tell about: clients take some 8 KB of one
NUMBER_BYTES = 4

_encoder = msgspec.json.Encoder()

# Fields of vLLM's that would change a vector, of each the values that change nothing here.
_FIXED: dict[str, tuple[Any, ...]] = {
    "add_special_tokens": (True,),
    "embed_dtype": ("float32",),
    "endianness": ("native", "little"),
    "messages": (),
    "padding": ("do_not_pad",),
    "truncation_side": ("right",),
    "use_activation": (True,),
}


class CreateEmbedding(Struct, kw_only=True):
    """`input` is a text, texts, the tokens of one, or those of several."""

    model: str
    input: str | list[str | TokenId | list[TokenId]]
    encoding_format: Written = "float"
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
    """`id` and `created` are vLLM's."""

    id: str
    object: Literal["list"] = "list"
    created: int
    model: str
    data: list[Embedding]
    usage: EmbeddingUsage


class _Place(Struct, kw_only=True):
    """Where a vector is in the bytes."""

    index: int
    embed_dtype: str = "float32"
    endianness: str = "little"
    start: int
    end: int
    shape: tuple[int]


class _Metadata(Struct, kw_only=True):
    id: str
    created: int
    model: str
    data: list[_Place]
    usage: EmbeddingUsage


_shape = Shape(CreateEmbedding)


def decode_embedding(body: bytes, limits: Limits) -> tuple[CreateEmbedding, list[str]]:
    """And the names of fields that nobody knows."""
    raw = decode_object(body, limits)
    drop_nulls(raw)
    _shape.long_words.check(raw, len(body))
    _check_count(raw.get("input"), limits)
    for name, harmless in sorted(_FIXED.items()):
        if name in raw and raw[name] not in harmless:
            raise UnsupportedParameter(f"This value of '{name}' is not supported.", param=name)
    asked, ignored = _shape.read(raw, limits)
    _check_alike(asked.input)
    if asked.truncate_prompt_tokens == 0:
        raise _unfit("truncate_prompt_tokens", "it must be -1 (as many as the model takes) or at least 1")
    if asked.encoding_format == "bytes" and len(inputs(asked)) > MOST_IN_A_HEADER:
        raise _unfit(
            "encoding_format", f"bytes can be told about for at most {MOST_IN_A_HEADER} inputs; send 'bytes_only'"
        )
    return asked, ignored


def inputs(asked: CreateEmbedding) -> Inputs:
    """One for each vector."""
    given = asked.input
    if isinstance(given, str):
        return [given]
    tokens = [each for each in given if isinstance(each, int)]
    return [tokens] if tokens else [each for each in given if not isinstance(each, int)]


def written(
    asked: CreateEmbedding, id: str, created: int, model: str, vectors: Sequence[Sequence[float]], tokens: int
) -> "Answer":
    usage = EmbeddingUsage(prompt_tokens=tokens, total_tokens=tokens)
    if asked.encoding_format in ("float", "base64"):
        write = _text if asked.encoding_format == "base64" else list[float]
        data = [Embedding(index=index, embedding=write(vector)) for index, vector in enumerate(vectors)]
        listed = EmbeddingList(id=id, created=created, model=model, data=data, usage=usage)
        return Answer(_encoder.encode(listed))
    metadata = _Metadata(id=id, created=created, model=model, data=_places(vectors), usage=usage)
    told = _ascii(metadata) if asked.encoding_format == "bytes" else b""
    return Answer(b"".join(map(_bytes, vectors)), told)


class Answer(Struct, frozen=True):
    body: bytes
    metadata: bytes | None = None  # what a header says of a body of bare bytes; empty: nothing


def _bytes(vector: Sequence[float]) -> bytes:
    numbers = array("f", vector)
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers.tobytes()


def _text(vector: Sequence[float]) -> str:
    return b64encode(_bytes(vector)).decode()


def _places(vectors: Sequence[Sequence[float]]) -> list[_Place]:
    places: list[_Place] = []
    at = 0
    for index, vector in enumerate(vectors):
        end = at + NUMBER_BYTES * len(vector)
        places.append(_Place(index=index, start=at, end=end, shape=(len(vector),)))
        at = end
    return places


def _ascii(metadata: _Metadata) -> bytes:
    """A model's name may have any character, a header may not."""
    return json.dumps(msgspec.to_builtins(metadata), separators=(",", ":")).encode("ascii")


def _check_count(given: Any, limits: Limits) -> None:
    """Before time is spent on any of them. A list of numbers is one input, which the model's context bounds."""
    if type(given) is not list:
        return
    if len(given) > limits.embedding_inputs and type(given[0]) is not int:
        raise _unfit("input", f"it has {len(given)} inputs; at most {limits.embedding_inputs} are allowed")


def _check_alike(given: str | list[Any]) -> None:
    if not given:
        raise _unfit("input", "it must not be empty")
    if isinstance(given, str):
        return
    kinds = {type(each) for each in given}
    if len(kinds) > 1:
        raise _unfit("input", "it must be a string, strings, numbers of tokens, or lists of these")
    for index, each in enumerate(given):
        if each in ("", []):
            raise _unfit(f"input[{index}]", "it must not be empty")


def _unfit(param: str, reason: str) -> InvalidValue:
    return InvalidValue(f"Invalid value for '{param}': {reason}.", param=param)
