"""How families of models write their thoughts: a row for each name that vLLM's --reasoning-parser knows, and some more.

A prompt that ends with an opening mark of its template's puts the model into the thought already: where prompts are
rendered here, that decides. `implicit` is for those that an engine renders out of sight.
"""

from typing import Final

from msgspec import Struct

from antiphon.core.prompt import Prompt, Segment, TextPrompt


class Around(Struct, frozen=True):
    """Marks that some models put around their answers; they are nobody's."""

    opening: str
    closing: str


class Marks(Struct, frozen=True, kw_only=True):
    opening: tuple[str, ...] = ("<think>",)
    closing: tuple[str, ...] = ("</think>",)
    answer: tuple[Around, ...] = ()
    implicit: bool = False  # it thinks from the first word on, without a mark: its template writes the mark
    again: bool = False  # it may think again after an answer or a call
    anywhere: bool = False  # even in the middle of a line; and a closing mark is never text
    controls: tuple[str, ...] = ()  # those marks that are control tokens, which engines hide unless told not to


_THINK = Marks()  # it says both marks itself, or its prompt shows which of them is still to come
_BEGUN = Marks(implicit=True)

_GRANITE = Marks(
    opening=("Here is my thought process:", "Here's my thought process:", "<think>"),
    closing=("Here is my response:", "Here's my response:", "</think>"),
    answer=(Around("<response>", "</response>"),),
)
_MISTRAL = Marks(
    opening=("[THINK]", "<think>"),
    closing=("[/THINK]", "</think>"),
    again=True,
    controls=("[THINK]", "[/THINK]"),
)
_COHERE = Marks(
    opening=("<|START_THINKING|>",),
    closing=("<|END_THINKING|>",),
    answer=(Around("<|START_RESPONSE|>", "<|END_RESPONSE|>"), Around("<|START_TEXT|>", "<|END_TEXT|>")),
    controls=(
        *("<|START_THINKING|>", "<|END_THINKING|>", "<|START_RESPONSE|>", "<|END_RESPONSE|>"),
        *("<|START_TEXT|>", "<|END_TEXT|>"),
    ),
)
_KIMI_K3 = Marks(
    opening=("<|open|>think<|sep|>",),
    closing=("<|close|>think<|sep|>",),
    answer=(Around("<|open|>response<|sep|>", "<|close|>response<|sep|>"),),
    implicit=True,
    controls=("<|open|>", "<|close|>", "<|sep|>"),
)
_GEMMA = Marks(
    opening=("<|channel>thought",),
    closing=("<channel|>",),
    again=True,
    anywhere=True,
    controls=("<|channel>", "<channel|>"),
)
_SEED = Marks(opening=("<seed:think>",), closing=("</seed:think>",), implicit=True)

THOUGHTS: Final[dict[str, Marks]] = {
    "apriel": Marks(opening=("Here are my reasoning steps:",), closing=("[BEGIN FINAL RESPONSE]",), implicit=True),
    "cohere_command3": _COHERE,
    "cohere_command4": _COHERE,
    "deepseek_r1": _BEGUN,
    "deepseek_v3": _THINK,
    "deepseek_v4": _BEGUN,
    "ernie45": Marks(answer=(Around("<response>", "</response>"),), implicit=True),
    "gemma4": _GEMMA,
    "glm45": _BEGUN,
    "glm47": _BEGUN,
    "granite": _GRANITE,
    "holo2": _BEGUN,
    "hunyuan_a13b": Marks(answer=(Around("<answer>", "</answer>"),)),
    "hy_v3": Marks(opening=("<think>", "<think:opensource>"), closing=("</think>", "</think:opensource>")),
    "kimi_k2": _BEGUN,
    "kimi_k3": _KIMI_K3,
    "ling3": _BEGUN,
    "mimo": _BEGUN,
    "minimax_m2": _BEGUN,
    "minimax_m2_append_think": _BEGUN,  # thoughts are items of their own here, and go back to the model as such
    "minimax_m3": Marks(opening=("<mm:think>",), closing=("</mm:think>",)),
    "mistral": _MISTRAL,
    "nemotron_v3": _BEGUN,
    "olmo3": _BEGUN,
    "poolside_v1": _THINK,
    "qwen3": _BEGUN,
    "seed_oss": _SEED,
    "step3": _BEGUN,
    "step3p5": _BEGUN,
    "think": _THINK,  # whoever uses these marks and is of no family above
}


def opens(prompt: Prompt, marks: Marks) -> bool:
    """Whether the prompt ends with an opening mark that the template wrote: what a client wrote opens nothing."""
    if not isinstance(prompt, TextPrompt) or not prompt.segments or not prompt.segments[-1].control:
        return False
    return prompt.segments[-1].text.rstrip().endswith(marks.opening)


def closed(prompt: TextPrompt, marks: Marks) -> TextPrompt:
    """The same, with the thought that it opened closed again: the model answers at once."""
    text = prompt.segments[-1].text
    pairs = zip(marks.opening, marks.closing, strict=True)
    closing = next(closing for opening, closing in pairs if text.rstrip().endswith(opening))
    empty = "\n" if text.endswith("\n") else "\n\n"
    return TextPrompt((*prompt.segments, Segment(f"{empty}{closing}\n\n", True)))
