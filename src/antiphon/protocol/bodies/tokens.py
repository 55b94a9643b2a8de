"""Bodies of /tokenize and /detokenize in the format of vLLM: a text or a chat to token ids, and token ids to a text."""

from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from antiphon.errors import InvalidValue, UnsupportedParameter, invalid_value, missing_parameter, mutually_exclusive
from antiphon.limits import Limits
from antiphon.protocol.decoding.codec import RequestDecoder, decode_object
from antiphon.protocol.decoding.normalise import drop_nulls
from antiphon.protocol.types.tools import Json

TokenId = Annotated[int, Meta(ge=0, le=2**31 - 1)]

_TOKENIZE_ONLY = ("return_token_strs", "add_special_tokens")  # fields that the body of a chat completion does not have
_encode = msgspec.json.Encoder().encode


class Tokenize(Struct, kw_only=True):
    """`prompt`, or `messages` with any other field of a chat completion."""

    prompt: str = ""
    model: str | None = None
    messages: list[Json] | None = None
    add_special_tokens: bool = True
    return_token_strs: bool = False


class Detokenize(Struct, kw_only=True):
    tokens: list[TokenId]
    model: str | None = None


class Tokenized(Struct, kw_only=True):
    count: int
    max_model_len: int | None
    tokens: list[int]
    token_strs: list[str] | None = None


class Detokenized(Struct, kw_only=True):
    prompt: str


class DecodedTokenize(Struct, frozen=True, kw_only=True):
    request: Tokenize
    ignored: list[str]  # names of unknown fields
    chat: bytes | None = None  # body of the chat completion to tokenise


_tokenize_decoder = RequestDecoder(Tokenize)
decode_detokenize = RequestDecoder(Detokenize, counts={"tokens": "parts"}).decode_body


def decode_tokenize(body: bytes, limits: Limits) -> DecodedTokenize:
    raw = decode_object(body, limits)
    drop_nulls(raw)
    if "messages" in raw:
        return _decode_chat(raw)
    request, ignored = _tokenize_decoder.convert(raw, len(body), limits)
    if "prompt" not in raw:
        raise missing_parameter("prompt")
    if len(request.prompt) > limits.tokenize_characters:
        raise InvalidValue(
            f"'prompt' has {len(request.prompt)} characters; at most {limits.tokenize_characters} are allowed.",
            param="prompt",
        )
    return DecodedTokenize(request=request, ignored=ignored)


def _decode_chat(raw: Json) -> DecodedTokenize:
    if "prompt" in raw:
        raise mutually_exclusive("prompt", "messages")
    if raw.get("add_special_tokens", False) is not False:
        raise UnsupportedParameter(
            "'add_special_tokens' must be false with 'messages': the chat template adds the special tokens.",
            param="add_special_tokens",
        )
    model, with_strings = raw.get("model"), raw.get("return_token_strs", False)
    if not isinstance(with_strings, bool):
        raise invalid_value("return_token_strs", "expected a boolean")
    chat: Any = {name: value for name, value in raw.items() if name not in _TOKENIZE_ONLY}
    request = Tokenize(model=model if isinstance(model, str) else None, return_token_strs=with_strings)
    return DecodedTokenize(request=request, ignored=[], chat=_encode(chat))
