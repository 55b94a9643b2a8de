"""The image_generation tool of the server: the function that it offers to models, and its settings."""

from collections.abc import Mapping
from typing import Any, Final

from msgspec import UNSET

from antiphon.protocol.types.tools import FunctionTool, ImageGenerationTool
from antiphon.protocol.types.tools import Tool as Declaration
from antiphon.tools.base import BuiltInTool, ToolServices
from antiphon.tools.image_generation.declaration import NAME, SIZE_PATTERN
from antiphon.tools.image_generation.response_images import MAX_PROMPT, ResponseImages

_SETUP_HINT = "The server's operator names an image service with --image-service."
_DESCRIPTION: Final = (
    "Makes an image from a description, or edits images of this conversation, and shows it to the user. Describe"
    " everything that is to be seen: the image is drawn from this text alone."
)
_PROMPT: Final = {
    "type": "string",
    "minLength": 1,
    "maxLength": MAX_PROMPT,
    "description": "What the image shows, or what is to be changed.",
}
_SIZE: Final = {"type": "string", "pattern": SIZE_PATTERN, "description": "WIDTHxHEIGHT in pixels, or auto."}
_ACTION: Final = {
    "type": "string",
    "enum": ["generate", "edit"],
    "description": "edit: change the latest images of the conversation. generate: make a new one.",
}


class ImageGeneration(BuiltInTool):
    """The image_generation tool; see `BuiltInTool`."""

    kind = NAME
    types: tuple[type, ...] = (ImageGenerationTool,)
    harmony = NAME
    recipients: Mapping[str, str] = {f"{NAME}.generate": NAME}

    def __init__(self, services: ToolServices) -> None:
        self._services = services

    @property
    def missing(self) -> str:
        return _SETUP_HINT if self._services.images is None else ""

    def list_functions(self, declared: Declaration) -> tuple[FunctionTool, ...]:
        """Return the function, with the parameters that the declaration leaves to the model."""
        assert isinstance(declared, ImageGenerationTool)
        properties: dict[str, Any] = {"prompt": _PROMPT}
        if declared.size == "auto":
            properties["size"] = _SIZE
        if declared.action in (UNSET, "auto"):
            properties["action"] = _ACTION
        parameters = {"type": "object", "properties": properties, "required": ["prompt"], "additionalProperties": False}
        return (FunctionTool(name=NAME, description=_DESCRIPTION, parameters=parameters, strict=False),)

    def list_ignored(self, declared: Declaration) -> list[str]:
        assert isinstance(declared, ImageGenerationTool)
        is_unused = declared.action == "generate" and declared.input_fidelity is not UNSET
        return ["tools.input_fidelity"] if is_unused else []

    def begin(self, declared: Declaration, tenant: str, include: frozenset[str]) -> ResponseImages:
        assert isinstance(declared, ImageGenerationTool)
        images, load_images = self._services.images, self._services.load_images
        assert images is not None
        assert load_images is not None
        return ResponseImages(images, load_images, declared, tenant)
