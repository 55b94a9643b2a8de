"""The checks of a declaration of image_generation, and the request to an image service that follows from it."""

from typing import Final

from msgspec import UNSET

from antiphon.core.image_generation import ImageRequest, SourceImage
from antiphon.errors import InvalidValue, MissingParameter, MutuallyExclusive, UnsupportedParameter
from antiphon.protocol.types.tools import ImageGenerationTool

NAME: Final = "image_generation"
EDIT: Final = f"{NAME}.edit"  # a call by gpt-oss, which addresses edits by a recipient of their own
SIZE_PATTERN: Final = r"^(auto|[1-9]\d{1,4}x[1-9]\d{1,4})$"
_NOT_SUPPORTED: Final = ("complexity", "frame_count", "frame_duration_ms", "svg")  # no image service has them


def check_declaration(declared: ImageGenerationTool, param: str) -> None:
    """Raise a BadRequest that names the option below `param` which is invalid or without a service that has it."""
    for name in _NOT_SUPPORTED:
        if getattr(declared, name) is not UNSET:
            raise UnsupportedParameter(f"No image service takes {name!r}: leave it out.", param=f"{param}.{name}")
    _check_mask(declared, f"{param}.input_image_mask")


def _check_mask(declared: ImageGenerationTool, param: str) -> None:
    if (mask := declared.input_image_mask) is UNSET:
        return
    if declared.action == "generate":
        raise InvalidValue("A mask is for edits, which the action 'generate' excludes.", param=param)
    if mask.image_url is UNSET and mask.file_id is UNSET:
        raise MissingParameter("A mask needs an image_url or a file_id.", param=f"{param}.image_url")
    if mask.image_url is not UNSET and mask.file_id is not UNSET:
        raise MutuallyExclusive("A mask has an image_url or a file_id, not both.", param=f"{param}.file_id")


def make_image_request(
    declared: ImageGenerationTool,
    prompt: str,
    size: str = "auto",
    sources: tuple[SourceImage, ...] = (),
    mask: SourceImage | None = None,
) -> ImageRequest:
    """Return the request for one image. `size` is the model's, and applies if the declaration leaves it open.

    The fidelity is one to the images that are edited.
    """
    size = declared.size if declared.size != "auto" else size
    return ImageRequest(
        prompt=prompt,
        model=None if declared.model is UNSET else declared.model,
        size=None if size == "auto" else size,
        quality=None if declared.quality == "auto" else declared.quality,
        background=None if declared.background == "auto" else declared.background,
        output_format=declared.output_format,
        output_compression=None if declared.output_compression == 100 else declared.output_compression,
        moderation=None if declared.moderation == "auto" else declared.moderation,
        input_fidelity=None if declared.input_fidelity is UNSET or not sources else declared.input_fidelity,
        partial_images=declared.partial_images or 0,
        sources=sources,
        mask=mask,
    )
