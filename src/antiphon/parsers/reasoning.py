"""Splits model output into reasoning and answer by the markers of its family.

    START ──opening──▶ REASONING ──closing──▶ GAP ──text──▶ ANSWER ──opening, if it may reopen──▶ REASONING
      └──any other text──▶ ANSWER │            ▲
                                  └────────────┘ the marker of a call ends reasoning that was left open

White space around the markers is dropped; all other text is preserved. Before any answer text a closing marker ends
nothing and is dropped. Within an answer markers are text, except those of a format that may reopen, on a line of their
own.

`REASONING_FORMATS` has one row for each name of vLLM's --reasoning-parser, and some more. A prompt that ends with an
opening marker of its template starts the output within reasoning; for prompts rendered by this server that decides.
`implicit` applies to prompts that an engine renders itself.

`AnswerEndFilter` removes the closing marker of an answer, such as </answer>, and the space around it, if only white
space follows. If text follows, the marker was quoted, unless it is a control token: models do not quote those.
"""

from collections.abc import Sequence
from enum import IntEnum
from functools import lru_cache
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from antiphon.core.deltas import ReasoningDelta
from antiphon.core.prompt import Prompt, Segment, TextPrompt
from antiphon.parsers.calls.base import TextPiece
from antiphon.parsers.calls.delimited_calls import MarkerFinder
from antiphon.parsers.json_repair import skip_space


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

REASONING_FORMATS: Final[dict[str, ReasoningMarkers]] = {
    **dict.fromkeys(("cohere_command3", "cohere_command4"), _COHERE),
    # `think`: models with these markers that belong to no other family
    **dict.fromkeys(("deepseek_v3", "poolside_v1", "think"), ReasoningMarkers()),
    # minimax_m2_append_think: reasoning is a separate item here and is sent back to the model as such
    **dict.fromkeys(
        (
            *("deepseek_r1", "deepseek_v4", "glm45", "glm47", "holo2", "kimi_k2", "ling3", "mimo", "minimax_m2"),
            *("minimax_m2_append_think", "nemotron_v3", "olmo3", "qwen3", "step3", "step3p5"),
        ),
        ReasoningMarkers(implicit=True),
    ),
    "apriel": ReasoningMarkers(
        opening=("Here are my reasoning steps:",), closing=("[BEGIN FINAL RESPONSE]",), implicit=True
    ),
    "ernie45": ReasoningMarkers(answer=(AnswerMarkers("<response>", "</response>"),), implicit=True),
    "gemma4": _GEMMA,
    "granite": _GRANITE,
    "hunyuan_a13b": ReasoningMarkers(answer=(AnswerMarkers("<answer>", "</answer>"),)),
    "hy_v3": ReasoningMarkers(opening=("<think>", "<think:opensource>"), closing=("</think>", "</think:opensource>")),
    "kimi_k3": _KIMI_K3,
    "minimax_m3": ReasoningMarkers(opening=("<mm:think>",), closing=("</mm:think>",)),
    "mistral": _MISTRAL,
    "seed_oss": ReasoningMarkers(opening=("<seed:think>",), closing=("</seed:think>",), implicit=True),
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
    return replace(prompt, segments=(*prompt.segments, Segment(f"{separator}{closing}\n\n", True)))


MAX_CLOSING_MARKERS: Final = 64  # closing markers in an answer; further ones are text


class AnswerEndFilter:
    """Removes the closing marker at the end of an answer."""

    def __init__(self, marker: str, control: bool) -> None:
        self._finder = MarkerFinder(marker)
        self._control = control
        self._fed = 0  # end position of the fed text
        self._held = ""  # possible beginning of the marker
        self._tail: list[str] = []  # space and markers, emitted only if text follows
        self._after_marker = False
        self._marker_count = 0

    def feed(self, piece: TextPiece) -> Sequence[TextPiece]:
        out: list[TextPiece] = []
        if not self._held and not self._finder.may_occur_in(piece.text):
            self._fed = piece.end
            if not (self._tail or self._after_marker or piece.text[-1].isspace()):
                return (piece,)
            self._add_text(piece.text, piece.end, out)
            return out
        text, self._fed = self._held + piece.text, piece.end
        offset, at, has_more = piece.end - len(text), 0, True
        while has_more and at < len(text):
            is_limited = self._marker_count >= MAX_CLOSING_MARKERS
            position, marker = (len(text), "") if is_limited else self._finder.find_next(text, at)
            self._add_text(text[at:position], offset + position, out)
            at, has_more = position + len(marker), bool(marker)
            if marker:
                self._add_marker(marker)
        self._held = text[at:]
        return out

    def finish(self) -> Sequence[TextPiece]:
        """Return the held text: a marker that was cut off is text."""
        remaining = ("" if self._after_marker else "".join(self._tail)) + self._held
        self._held = ""
        self._tail.clear()
        return (TextPiece(remaining, self._fed),) if remaining else ()

    def _add_marker(self, marker: str) -> None:
        self._after_marker = True
        self._marker_count += 1
        if self._control:
            self._tail.clear()
        else:
            self._tail.append(marker)

    def _add_text(self, text: str, end: int, out: list[TextPiece]) -> None:
        if self._control and self._after_marker:
            text = text.lstrip()
        if body := text.rstrip():
            out.append(TextPiece("".join([*self._tail, body]), end - len(text) + len(body)))
            self._tail.clear()
            self._after_marker = False
        if len(body) < len(text):
            self._tail.append(text[len(body) :])


MAX_MARKERS: Final = 64  # reasoning sections and quoted markers per answer; further markers are text
LINE_ENDS: Final = frozenset("\n")  # a line begins after these
CALL_ENDS: Final = frozenset("\n>]}")  # a line or the text after a call begins after these
SplitPart = ReasoningDelta | TextPiece


class SplitPhase(IntEnum):
    START = 0
    REASONING = 1
    GAP = 2
    ANSWER = 3


# Module constants: enum member access dominates the cost on the token path.
REASONING: Final = SplitPhase.REASONING
GAP: Final = SplitPhase.GAP
ANSWER: Final = SplitPhase.ANSWER


class ReasoningSplitter:
    """Splits output incrementally.

    `opened`: the prompt has opened reasoning. `call_markers`: markers that begin a call. `certain_call_markers`: those
    that cannot occur in text.
    """

    def __init__(
        self,
        markers: ReasoningMarkers,
        opened: bool = False,
        call_markers: tuple[str, ...] = (),
        certain_call_markers: tuple[str, ...] = (),
    ) -> None:
        self.is_answering = False  # all further output is the answer
        self._markers = markers
        self._may_reopen = markers.may_reopen
        self._opened = opened
        self.json_answer = False  # a leading bracket belongs to the answer even if the prompt opened reasoning
        self._stray_closings = tuple([marker for marker in markers.closing if not marker[0].isalpha()])
        self._answer_closings = {answer.opening: answer.closing for answer in markers.answer}
        self._edge_finder, self._opening_finder, self._closing_finder = _build_finders(
            markers, self._stray_closings, call_markers
        )
        self._call_markers, self._certain_call_markers = frozenset(call_markers), frozenset(certain_call_markers)
        self._phase = SplitPhase.START
        self._end_filter: AnswerEndFilter | None = None
        self._fed = 0  # characters before the buffer
        self._held = ""
        self._pending_space: list[str] = []  # space that counts only if text follows
        self._reasoning_started = False  # reasoning text has begun, not only its marker
        self._had_reasoning = False  # there was reasoning before
        self._at_boundary = True  # at the beginning of a line, or directly after a call or marker
        self._marker_count = 0  # number of markers

    def feed(self, text: str) -> Sequence[SplitPart]:
        out: list[SplitPart] = []
        if self._reasoning_started and not self._held and not self._closing_finder.may_occur_in(text):
            self._fed += len(text)
            if text and not self._pending_space and not text[-1].isspace():
                self._at_boundary = False
                return (ReasoningDelta(text),)
            self._add_reasoning(text, out)
        elif self._phase is ANSWER and not self._held and not self._opening_finder.may_occur_in(text):
            self._fed += len(text)
            if text and self._end_filter is None and text[-1] not in " \t":
                self._at_boundary = text[-1] in CALL_ENDS
                return (TextPiece(text, self._fed),)
            if text and self._end_filter is not None and not self._may_reopen:
                return self._end_filter.feed(TextPiece(text, self._fed))
            if text:
                self._add_text(text, 0, out)
        else:
            self._process(self._held + text if self._held else text, out)
        return out

    def finish(self) -> Sequence[SplitPart]:
        out: list[SplitPart] = []
        held, self._held = self._held, ""
        if self._phase is SplitPhase.START:
            self._leave_start(0, out)
        if self._phase is REASONING:
            self._add_reasoning(held, out)
            if self._reasoning_started and (blank := "".join(self._pending_space)):
                out.append(ReasoningDelta(blank))
        elif held:
            self._add_text(held, len(held), out)
        self._pending_space.clear()
        self._phase = ANSWER
        if self._end_filter is not None:
            out += self._end_filter.finish()
        self._end_filter = None
        return out

    def _process(self, text: str, out: list[SplitPart]) -> None:
        at, has_more = 0, True
        while has_more and at < len(text):
            match self._phase:
                case SplitPhase.START:
                    at, has_more = self._read_start(text, at, out)
                case SplitPhase.REASONING:
                    at, has_more = self._read_reasoning(text, at, out)
                case SplitPhase.GAP:
                    at, has_more = self._read_gap(text, at)
                case SplitPhase.ANSWER:
                    at, has_more = self._read_answer(text, at, out)
        self._held = text[at:]
        self._fed += at
        self.is_answering = self._phase is ANSWER and not (self._may_reopen or self._held or self._end_filter)

    def _read_start(self, text: str, at: int, out: list[SplitPart]) -> tuple[int, bool]:
        begin = skip_space(text, at)
        self._pending_space.append(text[at:begin])
        if marker := self._read_edge_marker(text, begin):
            self._pending_space.clear()
            return begin + len(marker), True
        if begin == len(text) or self._edge_finder.is_prefix(text, begin):
            return begin, False
        if self.json_answer and text[begin] in "{[":
            self._opened = False
        self._leave_start(begin, out)
        return begin, True

    def _leave_start(self, position: int, out: list[SplitPart]) -> None:
        """Leave the start without an opening marker: this is the answer, or the prompt already contained the marker."""
        blank = "".join(self._pending_space)
        self._pending_space.clear()
        self._phase = REASONING if self._opened else ANSWER
        if blank and not self._opened:
            self._add_text(blank, position, out)

    def _read_gap(self, text: str, at: int) -> tuple[int, bool]:
        begin = skip_space(text, at)
        if self._marker_count < MAX_MARKERS:
            if marker := self._read_edge_marker(text, begin):
                self._marker_count += 1
                return begin + len(marker), True
            if self._edge_finder.is_prefix(text, begin):
                return begin, False
        if begin < len(text):
            self._phase = ANSWER
        return begin, True

    def _read_edge_marker(self, text: str, at: int) -> str:
        """Return the marker at this position before any answer text, and set the phase that follows it."""
        for marker in self._markers.opening:
            if text.startswith(marker, at):
                self._begin_reasoning()
                return marker
        for marker in self._stray_closings:
            if text.startswith(marker, at):
                self._phase = GAP
                return marker
        for marker, closing in self._answer_closings.items():
            if text.startswith(marker, at) and not (self._opened and self._phase is SplitPhase.START):
                self._end_filter = AnswerEndFilter(closing, closing in self._markers.control_tokens)
                self._phase = GAP
                return marker
        return ""

    def _begin_reasoning(self) -> None:
        self._pending_space = ["\n\n"] if self._had_reasoning and self._phase is GAP else []
        self._phase, self._at_boundary = REASONING, True

    def _read_reasoning(self, text: str, at: int, out: list[SplitPart]) -> tuple[int, bool]:
        position, marker = self._closing_finder.find_next(text, at)
        self._add_reasoning(text[at:position], out)
        if not marker:
            return position, False
        if not self._ends_reasoning(marker):
            self._add_reasoning(marker, out)
            self._count_quoted_marker()
            return position + len(marker), True
        self._pending_space.clear()
        self._reasoning_started, self._at_boundary = False, True
        self._phase = GAP
        return (position if marker in self._call_markers else position + len(marker)), True

    def _ends_reasoning(self, marker: str) -> bool:
        """Return whether the marker ends reasoning: the marker of a call within a line may be quoted."""
        return marker not in self._call_markers or marker in self._certain_call_markers or self._at_boundary

    def _add_reasoning(self, text: str, out: list[SplitPart]) -> None:
        self._update_boundary(text, LINE_ENDS)
        if not self._reasoning_started:
            text = text.lstrip()
        if body := text.rstrip():
            out.append(ReasoningDelta("".join([*self._pending_space, body])))
            self._pending_space.clear()
            self._reasoning_started = self._had_reasoning = True
        if len(body) < len(text):
            self._pending_space.append(text[len(body) :])

    def _read_answer(self, text: str, at: int, out: list[SplitPart]) -> tuple[int, bool]:
        position, marker = self._opening_finder.find_next(text, at) if self._may_reopen else (len(text), "")
        if position > at:
            self._add_text(text[at:position], position, out)
        if marker in self._markers.opening and (self._at_boundary or self._markers.inline):
            self._begin_reasoning()
        elif marker and not self._markers.inline:
            self._add_text(marker, position + len(marker), out)
        if marker:
            self._marker_count += 1
            self._may_reopen = self._marker_count < MAX_MARKERS
        return position + len(marker), bool(marker)

    def _count_quoted_marker(self) -> None:
        self._marker_count += 1
        if self._marker_count == MAX_MARKERS:
            self._closing_finder = MarkerFinder(*self._markers.closing)

    def _add_text(self, text: str, position: int, out: list[SplitPart]) -> None:
        self._update_boundary(text, CALL_ENDS)
        piece = TextPiece(text, self._fed + position)
        if self._end_filter is None:
            out.append(piece)
        else:
            out += self._end_filter.feed(piece)

    def _update_boundary(self, text: str, boundaries: frozenset[str]) -> None:
        if text and text[-1] not in " \t":
            self._at_boundary = text[-1] in boundaries
        elif line := text.rstrip(" \t"):
            self._at_boundary = line[-1] in boundaries


@lru_cache(maxsize=256)
def _build_finders(
    markers: ReasoningMarkers, strays: tuple[str, ...], call_markers: tuple[str, ...]
) -> tuple[MarkerFinder, MarkerFinder, MarkerFinder]:
    """Return finders for the markers before an answer, those that begin reasoning after it, and those that end it."""
    return (
        MarkerFinder(*markers.opening, *strays, *[answer.opening for answer in markers.answer]),
        MarkerFinder(*markers.opening, *(strays if markers.inline else ())),
        MarkerFinder(*markers.closing, *_select_unambiguous(call_markers, markers.closing)),
    )


def _select_unambiguous(call_markers: tuple[str, ...], others: tuple[str, ...]) -> tuple[str, ...]:
    """Select the call markers that are not a prefix of another marker, such as a lone bracket.

    Of several markers with a common prefix the shortest is used.
    """
    selected: list[str] = []
    for marker in sorted(call_markers, key=len):
        if not any(other.startswith(marker) or marker.startswith(other) for other in (*others, *selected)):
            selected.append(marker)
    return tuple(selected)
