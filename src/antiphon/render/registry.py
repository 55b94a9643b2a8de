"""Prompt renderers that need a package of their own, imported when a model that uses one is served."""

from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import Final

from antiphon.core.prompt import ChatPrompt, TokenPrompt
from antiphon.render.harmony.system import HarmonySettings

RENDERERS: Final[dict[str, str]] = {
    "harmony": "antiphon.render.harmony.renderer:render_harmony",
}


@cache
def load_renderer(name: str) -> Callable[[ChatPrompt, HarmonySettings], TokenPrompt]:
    """Import the renderer with this name on first use."""
    module, _, attribute = RENDERERS[name].partition(":")
    renderer: Callable[[ChatPrompt, HarmonySettings], TokenPrompt] = getattr(import_module(module), attribute)
    return renderer
