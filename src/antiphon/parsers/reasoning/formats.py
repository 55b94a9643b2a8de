"""Reasoning formats of model families: one row for each name of vLLM's --reasoning-parser, and some more.

A prompt that ends with an opening marker of its template starts the output within reasoning; for prompts rendered by
this server that decides. `implicit` applies to prompts that an engine renders itself.
"""

from typing import Final

from msgspec import Struct

from antiphon.core.prompt import Prompt, Segment, TextPrompt


class AnswerMarkers(Struct, frozen=True):
    """Markers that some models put around their answers; they are removed."""

    opening: str
    closing: str


class ReasoningMarkers(Struct, frozen=True, kw_only=True):
    """Markers of one reasoning format."""

    opening: tuple[str, ...] = ("<think>",)
    closing: tuple[str, ...] = ("</think>",)
    answer: tuple[AnswerMarkers, ...] = ()
    implicit: bool = False  # the output starts within reasoning without a marker, because the template writes it
    may_reopen: bool = False  # reasoning may start again after an answer or a call
    inline: bool = False  # markers also count within a line, and a closing marker is never text
    control_tokens: tuple[str, ...] = ()  # markers that are control tokens, which engines hide by default


_THINK = ReasoningMarkers()  # the model writes both markers, or its prompt shows which one is still to come
_THINK_IMPLICIT = ReasoningMarkers(implicit=True)

_GRANITE = ReasoningMarkers(
    opening=("Here is my thought process:", "Here's my thought process:", "<think>"),
    closing=("Here is my response:", "Here's my response:", "</think>"),
    answer=(AnswerMarkers("<response>", "</response>"),),
)
_MISTRAL = ReasoningMarkers(
    opening=("[THINK]", "<think>"),
    closing=("[/THINK]", "</think>"),
    may_reopen=True,
    control_tokens=("[THINK]", "[/THINK]"),
)
_COHERE = ReasoningMarkers(
    opening=("<|START_THINKING|>",),
    closing=("<|END_THINKING|>",),
    answer=(AnswerMarkers("<|START_RESPONSE|>", "<|END_RESPONSE|>"), AnswerMarkers("<|START_TEXT|>", "<|END_TEXT|>")),
    control_tokens=(
        *("<|START_THINKING|>", "<|END_THINKING|>", "<|START_RESPONSE|>", "<|END_RESPONSE|>"),
        *("<|START_TEXT|>", "<|END_TEXT|>"),
    ),
)
_KIMI_K3 = ReasoningMarkers(
    opening=("<|open|>think<|sep|>",),
    closing=("<|close|>think<|sep|>",),
    answer=(AnswerMarkers("<|open|>response<|sep|>", "<|close|>response<|sep|>"),),
    implicit=True,
    control_tokens=("<|open|>", "<|close|>", "<|sep|>"),
)
_GEMMA = ReasoningMarkers(
    opening=("<|channel>thought",),
    closing=("<channel|>",),
    may_reopen=True,
    inline=True,
    control_tokens=("<|channel>", "<channel|>"),
)
_SEED = ReasoningMarkers(opening=("<seed:think>",), closing=("</seed:think>",), implicit=True)

REASONING_FORMATS: Final[dict[str, ReasoningMarkers]] = {
    "apriel": ReasoningMarkers(
        opening=("Here are my reasoning steps:",), closing=("[BEGIN FINAL RESPONSE]",), implicit=True
    ),
    "cohere_command3": _COHERE,
    "cohere_command4": _COHERE,
    "deepseek_r1": _THINK_IMPLICIT,
    "deepseek_v3": _THINK,
    "deepseek_v4": _THINK_IMPLICIT,
    "ernie45": ReasoningMarkers(answer=(AnswerMarkers("<response>", "</response>"),), implicit=True),
    "gemma4": _GEMMA,
    "glm45": _THINK_IMPLICIT,
    "glm47": _THINK_IMPLICIT,
    "granite": _GRANITE,
    "holo2": _THINK_IMPLICIT,
    "hunyuan_a13b": ReasoningMarkers(answer=(AnswerMarkers("<answer>", "</answer>"),)),
    "hy_v3": ReasoningMarkers(opening=("<think>", "<think:opensource>"), closing=("</think>", "</think:opensource>")),
    "kimi_k2": _THINK_IMPLICIT,
    "kimi_k3": _KIMI_K3,
    "ling3": _THINK_IMPLICIT,
    "mimo": _THINK_IMPLICIT,
    "minimax_m2": _THINK_IMPLICIT,
    # reasoning is a separate item here and is sent back to the model as such
    "minimax_m2_append_think": _THINK_IMPLICIT,
    "minimax_m3": ReasoningMarkers(opening=("<mm:think>",), closing=("</mm:think>",)),
    "mistral": _MISTRAL,
    "nemotron_v3": _THINK_IMPLICIT,
    "olmo3": _THINK_IMPLICIT,
    "poolside_v1": _THINK,
    "qwen3": _THINK_IMPLICIT,
    "seed_oss": _SEED,
    "step3": _THINK_IMPLICIT,
    "step3p5": _THINK_IMPLICIT,
    "think": _THINK,  # models with these markers that belong to no family above
}


def opens_reasoning(prompt: Prompt, markers: ReasoningMarkers) -> bool:
    """Return whether the prompt ends with an opening marker written by the template; client text does not count."""
    if not isinstance(prompt, TextPrompt) or not prompt.segments or not prompt.segments[-1].control:
        return False
    return prompt.segments[-1].text.rstrip().endswith(markers.opening)


def close_reasoning(prompt: TextPrompt, markers: ReasoningMarkers) -> TextPrompt:
    """Close the reasoning that the prompt opened, so that the model answers immediately."""
    text = prompt.segments[-1].text
    pairs = zip(markers.opening, markers.closing, strict=True)
    closing = next(closing for opening, closing in pairs if text.rstrip().endswith(opening))
    separator = "\n" if text.endswith("\n") else "\n\n"
    return TextPrompt((*prompt.segments, Segment(f"{separator}{closing}\n\n", True)))
