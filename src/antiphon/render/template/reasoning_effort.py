"""Maps a reasoning effort to the variables of a chat template: every effort variable that the template reads is set.

Values from the client's chat_template_kwargs take precedence. A template without such a variable ignores the effort.
"""

from functools import lru_cache
from typing import Final

from jinja2 import TemplateSyntaxError, meta

from antiphon.core.prompt import Json
from antiphon.render.template.sandbox import Sandbox

EFFORT_VARIABLES: Final = frozenset(
    {"enable_thinking", "thinking", "thinking_mode", "thinking_budget", "reasoning_effort", "thinking_effort"}
)
# values of Hunyuan templates; all other efforts are "high"
_HUNYUAN_EFFORTS: Final = {"none": "no_think", "minimal": "low", "low": "low"}
# values of Kimi templates; all other efforts are "max"
_KIMI_EFFORTS: Final = {"minimal": "low", "low": "low", "medium": "high", "high": "high"}


@lru_cache(maxsize=64)
def find_effort_variables(source: str) -> frozenset[str]:
    """Return the effort variables that the template reads."""
    try:
        return EFFORT_VARIABLES.intersection(meta.find_undeclared_variables(Sandbox().parse(source)))
    except (TemplateSyntaxError, RecursionError):
        return frozenset()


def build_effort_variables(effort: str | None, source: str) -> Json:
    """Return the template variables for a reasoning effort."""
    if effort is None:
        return {}
    return {
        name: value
        for name in find_effort_variables(source)
        if (value := _effort_value(name, effort, source)) is not None
    }


def _effort_value(name: str, effort: str, source: str) -> bool | int | str | None:
    reasoning_enabled = effort != "none"
    match name:
        case "enable_thinking" | "thinking":
            return reasoning_enabled
        case "thinking_mode":
            return "enabled" if reasoning_enabled else "disabled"
        case "thinking_budget":
            return None if reasoning_enabled else 0
        case "thinking_effort":
            return _KIMI_EFFORTS.get(effort, "max") if reasoning_enabled else None
        case _:
            return _HUNYUAN_EFFORTS.get(effort, "high") if "'no_think'" in source else effort
