"""Lazy access to the fake engine's Harmony support, which needs an optional package."""

from collections.abc import Sequence
from functools import cache
from importlib import import_module
from typing import Final, Protocol

from antiphon.core.prompt import GenerationRequest, Segment, TextPrompt, TokenPrompt
from antiphon.engines.fake.answer import AnswerChunks, AnswerContent
from antiphon.engines.fake.playback import ReplyRenderer
from antiphon.engines.fake.prompt_reader import ParsedPrompt

ARCHITECTURE: Final = "gpt_oss"


class HarmonySupport(Protocol):
    """Harmony functions that the fake engine uses."""

    def encode_with_controls(self, text: str) -> tuple[int, ...]:
        """Encode text in which control tokens are written by their names."""
        ...

    def encode(self, segments: Sequence[Segment]) -> tuple[int, ...]:
        """Encode segments; names of control tokens count only in control segments."""
        ...

    def decode(self, tokens: Sequence[int]) -> str: ...

    def parse_prompt(self, prompt: TextPrompt | TokenPrompt) -> ParsedPrompt: ...

    def split_answer(
        self, content: AnswerContent, request: GenerationRequest, prompt: ParsedPrompt, room: int | None
    ) -> AnswerChunks: ...

    def create_renderer(self, request: GenerationRequest) -> ReplyRenderer: ...


@cache
def load_harmony() -> HarmonySupport:
    support: HarmonySupport = import_module("antiphon.engines.fake.harmony").Harmony()
    return support
