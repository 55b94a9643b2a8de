"""SGLang's ranking, told as others tell it: it answers with a bare list, and calls what is relevant a score."""

import msgspec
from msgspec import UNSET, Struct, UnsetType
from msgspec.json import Decoder, encode

from antiphon.engines.base import Relayed
from antiphon.engines.counted import believed
from antiphon.errors import EngineFailed


class _Meta(Struct):
    prompt_tokens: int | None = None


class _Ranked(Struct):
    index: int
    score: float
    document: str | UnsetType | None = UNSET
    meta_info: _Meta | None = None


class _Document(Struct):
    text: str


class _Result(Struct, omit_defaults=True):
    index: int
    relevance_score: float
    document: _Document | UnsetType = UNSET


_LIST = Decoder(list[_Ranked])


def ranked(answer: Relayed, model: str, who: str) -> Relayed:
    """`who` begins the sentence about what is no ranking."""
    try:
        found = _LIST.decode(answer.body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise EngineFailed(f"{who} sent a ranking that cannot be read.") from None
    tokens = sum([believed(one.meta_info.prompt_tokens) for one in found if one.meta_info])
    results = [_Result(one.index, one.score, _document(one)) for one in found]
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return Relayed(encode({"model": model, "usage": usage, "results": results}))


def _document(one: _Ranked) -> "_Document | UnsetType":
    return _Document(one.document) if isinstance(one.document, str) else UNSET
