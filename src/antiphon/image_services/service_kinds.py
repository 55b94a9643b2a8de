"""The fields of a request that each kind of image service honours; others are refused with their names.

docs/images.md shows the same as a table. Sources: OpenAI's API reference; the request types of vLLM-Omni 0.30, SGLang
diffusion, stable-diffusion.cpp's server and LocalAI, as of November 2026.
"""

import re
from typing import Any, Final

from msgspec import Struct

from antiphon.core.image_generation import ImageRequest
from antiphon.errors import UnsupportedParameter
from antiphon.image_services.base import MAX_IMAGES, Operation, get_operation

_ALL_FIELDS: Final = frozenset({
    *("n", "size", "quality", "background", "output_format", "output_compression", "moderation", "style"),
    *("input_fidelity", "mask"),
})  # fmt: skip
# Values that need no field: a service without it does just that.
_NEUTRAL_VALUES: Final[dict[str, frozenset[Any]]] = {
    "size": frozenset({"auto"}),
    "quality": frozenset({"auto", "standard"}),
    "background": frozenset({"auto", "opaque"}),
    "moderation": frozenset({"auto", "low"}),
    "output_format": frozenset({"png"}),
    "output_compression": frozenset({100}),
    "input_fidelity": frozenset({"low"}),
}


# stable-diffusion.cpp takes arguments from a prompt, and may be behind a server of any kind.
_EXECUTED: Final = re.compile("sd_cpp_extra_args", re.IGNORECASE)


def clean_prompt(prompt: str) -> str:
    """Break up a mark that a service would execute."""
    return _EXECUTED.sub(lambda found: found[0].replace("_", " "), prompt)


class ServiceTable(Struct, frozen=True, kw_only=True):
    """One kind of image service."""

    title: str
    port: int
    fields: frozenset[str]  # of ImageRequest that it honours, besides the prompt and the model
    edit_fields: frozenset[str]  # likewise in edits
    formats: frozenset[str] = frozenset({"png"})  # where it honours output_format
    operations: frozenset[Operation] = frozenset({"generations", "edits"})
    max_images: int = MAX_IMAGES
    one_model: bool = False  # its server has one model, so no name is sent unless the operator maps it
    streams: bool = False  # sends previews
    has_unknown_model: bool = False  # a request without a model may be one to a model that returns base64 alone

    def check(self, request: ImageRequest, param: str, name: str) -> None:
        """Raise UnsupportedParameter for the first field that this kind cannot honour."""
        operation = get_operation(request)
        if operation not in self.operations:
            reason = f"The image service {name} ({self.title}) has no {operation}."
            raise UnsupportedParameter(reason, param=f"{param}image")
        for field in sorted(_ALL_FIELDS - self._list_honoured(request)):
            value = getattr(request, field)
            if value is not None and value not in _NEUTRAL_VALUES.get(field, ()):
                raise self._refuse(field, "", param, name)
        if request.output_format is not None and request.output_format not in self.formats:
            raise self._refuse("output_format", request.output_format, param, name)
        if request.output_format in (None, "png") and request.output_compression not in (None, 100):
            reason = "PNG has no lossy compression: choose jpeg or webp as the 'output_format'."
            raise UnsupportedParameter(reason, param=f"{param}output_compression")
        if (request.n or 1) > self.max_images:
            raise self._refuse("n", f"more than {self.max_images}", param, name)

    def list_fields(self, request: ImageRequest) -> dict[str, Any]:
        """Return the fields to send besides the prompt, the images and the model."""
        values = {field: getattr(request, field) for field in sorted(self._list_honoured(request) - {"mask"})}
        return {field: value for field, value in values.items() if value is not None and value != "auto"}

    def _list_honoured(self, request: ImageRequest) -> frozenset[str]:
        return self.edit_fields if request.sources else self.fields

    def _refuse(self, field: str, value: str, param: str, name: str) -> UnsupportedParameter:
        subject = f"'{field}' {value}".rstrip()
        return UnsupportedParameter(
            f"The image service {name} ({self.title}) does not support {subject}.", param=f"{param}{field}"
        )


_GPT_FIELDS: Final = _ALL_FIELDS - {"input_fidelity", "mask"}
_RASTER: Final = frozenset({"png", "jpeg", "webp"})
_BASIC: Final = frozenset({"n", "size"})
_ENCODED: Final = _BASIC | {"output_format", "output_compression"}

_ALL_OPERATIONS: Final[frozenset[Operation]] = frozenset({"generations", "edits", "variations"})

KINDS: Final[dict[str, ServiceTable]] = {
    "openai": ServiceTable(
        title="OpenAI and compatible servers", port=80, formats=_RASTER, operations=_ALL_OPERATIONS, streams=True,
        has_unknown_model=True, fields=_GPT_FIELDS, edit_fields=_ALL_FIELDS - {"style", "moderation"},
    ),
    "vllm-omni": ServiceTable(
        title="vLLM-Omni", port=8000, formats=_RASTER, one_model=True, fields=_BASIC, edit_fields=_ENCODED
    ),
    "sglang": ServiceTable(
        title="SGLang diffusion", port=30000, formats=_RASTER, one_model=True,
        fields=_BASIC | {"output_format"}, edit_fields=_BASIC | {"output_format"},
    ),
    "sd.cpp": ServiceTable(
        title="stable-diffusion.cpp", port=1234, formats=frozenset({"png", "jpeg"}), one_model=True,
        fields=_ENCODED, edit_fields=_ENCODED,
        max_images=8,  # more are silently reduced to 8
    ),
    "localai": ServiceTable(
        title="LocalAI", port=8080, operations=frozenset({"generations"}), fields=_BASIC, edit_fields=frozenset()
    ),
}  # fmt: skip

FAKE_TABLE: Final = ServiceTable(
    title="no model", port=0, operations=_ALL_OPERATIONS, streams=True,
    fields=_GPT_FIELDS - {"style", "quality"}, edit_fields=_ALL_FIELDS - {"style", "quality"},
)  # fmt: skip
