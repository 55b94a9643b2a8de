"""Selection of the model adapter.

The adapter for models that are rendered here needs jinja2 (2 MiB); it is imported in a thread when such a model is
first requested (`preload`).
"""

import asyncio
from functools import cache
from importlib import import_module
from typing import Any

from msgspec.structs import replace

from antiphon.engines.base import Capabilities
from antiphon.parsers.detection import ModelOutputFormat, detect_output_format, get_configured_format
from antiphon.protocol.types.request import CreateResponse
from antiphon.service.model_io.base import ModelAdapter
from antiphon.service.model_io.chat import ChatModelAdapter
from antiphon.service.model_io.harmony import HarmonyModelAdapter, extend_harmony_capabilities

_NO_FORMAT = ModelOutputFormat(calls=None)  # the operator has named no format


async def preload() -> None:
    """Import the raw adapter in a thread, so that the event loop is not blocked by it later."""
    if not _load_raw_module.cache_info().currsize:
        await asyncio.to_thread(_load_raw_module)


@cache
def _load_raw_module() -> Any:
    return import_module("antiphon.service.model_io.raw")


def make_adapter(request: CreateResponse, capabilities: Capabilities, model: str) -> ModelAdapter:
    """`model`: its name at the engine."""
    if capabilities.level == "chat":
        return ChatModelAdapter(request, capabilities, get_configured_format(capabilities.parser_choice))
    output_format = detect_engine_format(capabilities, model)
    if output_format.harmony:
        return HarmonyModelAdapter(request, capabilities)
    adapter: ModelAdapter = _load_raw_module().RawModelAdapter(request, capabilities, output_format)
    return adapter


def extend_capabilities(capabilities: Capabilities, model: str) -> Capabilities:
    """Return the engine's capabilities, extended by those of the model adapter."""
    if capabilities.template is not None:
        capabilities = _load_raw_module().add_effort_support(capabilities)
    output_format = find_output_format(capabilities, model)
    if output_format is None:
        return capabilities
    if output_format.harmony:
        return extend_harmony_capabilities(capabilities)
    if output_format.calls is None or "tools" in capabilities.supported_fields:
        return capabilities
    return replace(capabilities, supported_fields=capabilities.supported_fields | {"tools"})


def find_output_format(capabilities: Capabilities, model: str) -> ModelOutputFormat | None:
    """Return the output format that is parsed here; None if the engine parses the output."""
    if capabilities.level != "chat":
        return detect_engine_format(capabilities, model)
    output_format = get_configured_format(capabilities.parser_choice)
    return None if output_format == _NO_FORMAT else output_format


def detect_engine_format(capabilities: Capabilities, model: str) -> ModelOutputFormat:
    template = capabilities.template_source if capabilities.template is None else capabilities.template.source
    return detect_output_format(model, capabilities.architecture, template, capabilities.parser_choice)
