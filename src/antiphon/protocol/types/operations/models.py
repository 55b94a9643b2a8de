"""The list of models. What follows `owned_by` is an extension, for clients that configure themselves."""

from typing import Literal

from msgspec import Struct

Modality = Literal["text", "image", "audio", "embedding"]


class ModelObject(Struct, frozen=True, kw_only=True):
    """A model that requests may name. Limits are in tokens, and null if they are not known."""

    id: str
    object: Literal["model"] = "model"
    created: int = 0
    owned_by: str = "antiphon"
    context_length: int | None = None  # of prompt and output together
    max_output_tokens: int | None = None
    input_modalities: list[Modality] = []
    output_modalities: list[Modality] = []  # empty while its engine does not respond
    tools: bool | None = None
    reasoning: bool | None = None
    reasoning_efforts: list[str] = []  # that are known to reach the model


class ModelList(Struct, frozen=True, kw_only=True):
    object: Literal["list"] = "list"
    data: list[ModelObject]
