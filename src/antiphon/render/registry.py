"""Ways to make a prompt of a chat that need a package of their own, loaded when a model that needs one is served."""

from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import Final

from antiphon.core.prompt import ChatPrompt, TokenPrompt
from antiphon.render.harmony.system import Scene

RENDERERS: Final[dict[str, str]] = {
    "harmony": "antiphon.render.harmony.renderer:render_harmony",
}


@cache
def load_renderer(name: str) -> Callable[[ChatPrompt, Scene], TokenPrompt]:
    module, _, attribute = RENDERERS[name].partition(":")
    found: Callable[[ChatPrompt, Scene], TokenPrompt] = getattr(import_module(module), attribute)
    return found
