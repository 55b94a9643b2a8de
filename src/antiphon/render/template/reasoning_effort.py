"""A reasoning effort in the words of a chat template: whatever variable of that kind the template knows is set.

What a client says by chat_template_kwargs comes first. A template that knows none of them cannot be told.
"""

from functools import lru_cache
from typing import Final

from jinja2 import TemplateSyntaxError, meta

from antiphon.core.prompt import Json
from antiphon.render.template.sandbox import Sandbox

NAMES: Final = frozenset(
    {"enable_thinking", "thinking", "thinking_mode", "thinking_budget", "reasoning_effort", "thinking_effort"}
)
_NO_THINK: Final = {"none": "no_think", "minimal": "low", "low": "low"}  # and all others are high: Hunyuan's words
_THREE: Final = {"minimal": "low", "low": "low", "medium": "high", "high": "high"}  # and all others are max: Kimi's


@lru_cache(maxsize=64)
def known_variables(source: str) -> frozenset[str]:
    """Of those that tell whether and how much to think, the ones that the template asks for."""
    try:
        return NAMES.intersection(meta.find_undeclared_variables(Sandbox().parse(source)))
    except (TemplateSyntaxError, RecursionError):
        return frozenset()


def effort_variables(effort: str | None, source: str) -> Json:
    if effort is None:
        return {}
    return {name: value for name in known_variables(source) if (value := _said(name, effort, source)) is not None}


def _said(name: str, effort: str, source: str) -> bool | int | str | None:
    thinks = effort != "none"
    match name:
        case "enable_thinking" | "thinking":
            return thinks
        case "thinking_mode":
            return "enabled" if thinks else "disabled"
        case "thinking_budget":
            return None if thinks else 0
        case "thinking_effort":
            return _THREE.get(effort, "max") if thinks else None
        case _:
            return _NO_THINK.get(effort, "high") if "'no_think'" in source else effort
