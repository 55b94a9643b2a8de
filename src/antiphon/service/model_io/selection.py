"""Which tongue a model speaks. That of models which we render for needs a package of its own (jinja2, 2 MiB): it is
loaded when such a model is asked for, in a thread (`learn`)."""

import asyncio
from functools import cache
from importlib import import_module
from typing import Any

from msgspec.structs import replace

from antiphon.engines.base import Capabilities
from antiphon.parsers.detection import Manner, choose_manner, named_manner
from antiphon.protocol.types.request import CreateResponse
from antiphon.service.model_io.base import Heard as Heard
from antiphon.service.model_io.base import Tongue as Tongue
from antiphon.service.model_io.chat import ChatTongue
from antiphon.service.model_io.harmony import HarmonyTongue, in_harmony

_NONE = Manner(calls=None)  # the operator has named nothing


async def learn() -> None:
    """Before a model is asked for that we render for or whose words we read: nobody waits while that is loaded."""
    if not _raw.cache_info().currsize:
        await asyncio.to_thread(_raw)


@cache
def _raw() -> Any:
    return import_module("antiphon.service.model_io.raw")


def speak(request: CreateResponse, able: Capabilities, model: str) -> Tongue:
    """`model`: its name at the engine."""
    if able.prompt == "chat":
        return ChatTongue(request, able, named_manner(able.reads))
    manner = manner_of(able, model)
    if manner.harmony:
        return HarmonyTongue(request, able)
    tongue: Tongue = _raw().RawTongue(request, able, manner)
    return tongue


def spoken(able: Capabilities, model: str) -> Capabilities:
    """What the engine can do, and what can be done because of how the model is spoken to."""
    if able.template is not None:
        able = _raw().thoughtful(able)
    manner = heard_as(able, model)
    if manner is None:
        return able
    if manner.harmony:
        return in_harmony(able)
    if manner.calls is None or "tools" in able.honours:
        return able
    return replace(able, honours=able.honours | {"tools"})


def heard_as(able: Capabilities, model: str) -> Manner | None:
    """None: the engine parses what the model says, and nothing else is looked for."""
    if able.prompt != "chat":
        return manner_of(able, model)
    manner = named_manner(able.reads)
    return None if manner == _NONE else manner


def manner_of(able: Capabilities, model: str) -> Manner:
    template = able.wording if able.template is None else able.template.source
    return choose_manner(model, able.architecture, template, able.reads)
