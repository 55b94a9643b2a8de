"""What tools said, made shorter: a result that does not fit the model's context is told in part, and says so.

The items keep all of it; only what the model is told is less.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from antiphon.core.deltas import Said
from antiphon.protocol.types.items import McpCall, OutputItem

STEPS: Final = (None, 65_536, 16_384, 4_096, 1_024)  # characters of each result; None: all


def abridged(output: Sequence[OutputItem], said: Mapping[str, Said], most: int | None) -> Mapping[str, Said]:
    """What the model is told of each, by the items' ids."""
    if most is None:
        return said
    whole = {str(item.id): item.output for item in output if isinstance(item, McpCall) and item.output}
    return {name: _cut(text, most) if isinstance(text, str) else text for name, text in {**whole, **said}.items()}


def _cut(text: str, most: int) -> str:
    if len(text) <= most:
        return text
    return f"{text[:most]}\n[{len(text) - most:,} more characters are left out: they do not fit the context.]"
