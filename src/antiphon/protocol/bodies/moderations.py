"""The body and the reply of POST /moderations, and the categories.

`input` is a text, a list of texts, each with a result of its own, or a list of text and image parts with one result.
"""

from typing import Final

from msgspec import Struct

from antiphon.errors import invalid_value
from antiphon.limits import Limits
from antiphon.protocol.decoding.codec import RequestDecoder, decode_object
from antiphon.protocol.types.parts import Tagged
from antiphon.protocol.types.response import Judgement, Modality, ModerationResult

MAX_INPUTS: Final = 128
MODALITIES: Final[tuple[Modality, ...]] = ("text", "image")
# OpenAI's categories, and whether they apply to images as well as to texts
CATEGORIES: Final[dict[str, bool]] = {
    "harassment": False,
    "harassment/threatening": False,
    "hate": False,
    "hate/threatening": False,
    "illicit": False,
    "illicit/violent": False,
    "self-harm": True,
    "self-harm/instructions": True,
    "self-harm/intent": True,
    "sexual": True,
    "sexual/minors": False,
    "violence": True,
    "violence/graphic": True,
}


class ModeratedUrl(Struct, kw_only=True):
    url: str


class ModerationText(Tagged, tag="text", kw_only=True):
    text: str


class ModerationImage(Tagged, tag="image_url", kw_only=True):
    image_url: ModeratedUrl


ModerationPart = ModerationText | ModerationImage
ModerationInput = str | list[ModerationPart]  # what gets one result


class CreateModeration(Struct, kw_only=True):
    input: str | list[str | ModerationText | ModerationImage]
    model: str | None = None


class ModerationList(Struct, kw_only=True):
    id: str
    model: str
    results: list[Judgement]


_decoder = RequestDecoder(CreateModeration)


def decode_moderation(body: bytes, limits: Limits) -> tuple[CreateModeration, list[str]]:
    """Return the request and the names of unknown fields."""
    raw = decode_object(body, limits)
    value = raw.get("input")
    if isinstance(value, list) and len(value) > MAX_INPUTS:
        raise invalid_value("input", f"it has {len(value)} entries; at most {MAX_INPUTS} are allowed")
    request, ignored = _decoder.convert(raw, len(body), limits)
    if not request.input:
        raise invalid_value("input", "it must not be empty")
    if len({isinstance(entry, str) for entry in request.input}) > 1:
        raise invalid_value("input", "it must be a string, a list of strings, or a list of parts")
    return request, ignored


def list_inputs(request: CreateModeration) -> list[ModerationInput]:
    """Return what gets a result of its own."""
    if isinstance(request.input, str):
        return [request.input]
    parts = [entry for entry in request.input if not isinstance(entry, str)]
    return [parts] if parts else [entry for entry in request.input if isinstance(entry, str)]


def make_judgement(
    scores: dict[str, float], flags: dict[str, bool], modalities: frozenset[Modality], flagged: bool = False
) -> Judgement:
    """Complete the scores and flags of a model; categories that it lacks are 0. `flagged`: by another category."""
    categories = {name: flags.get(name, False) for name in CATEGORIES}
    return Judgement(
        flagged=flagged or any(categories.values()),
        categories=categories,
        category_scores={name: scores.get(name, 0.0) for name in CATEGORIES},
        category_applied_input_types={
            name: [one for one in MODALITIES if one in modalities and (one == "text" or sees_images)]
            for name, sees_images in CATEGORIES.items()
        },
    )


def merge_judgements(model: str, judged: list[Judgement]) -> ModerationResult:
    """Return the result of a text that was judged in pieces: of each category the highest score."""
    return ModerationResult(
        model=model,
        flagged=any(one.flagged for one in judged),
        categories={name: any(one.categories[name] for one in judged) for name in CATEGORIES},
        category_scores={name: max(one.category_scores[name] for one in judged) for name in CATEGORIES},
        category_applied_input_types={
            name: [*dict.fromkeys(kind for one in judged for kind in one.category_applied_input_types[name])]
            for name in CATEGORIES
        },
    )
