"""Harmony as the fake engine speaks it, loaded only where it is spoken: it needs a package of its own."""

from collections.abc import Sequence
from functools import cache
from importlib import import_module
from typing import Final, Protocol

from antiphon.core.prompt import Segment, TextPrompt, TokenPrompt, Work
from antiphon.engines.fake.answer import Answer, Spoken
from antiphon.engines.fake.playback import Voice
from antiphon.engines.fake.prompt_reader import Reading

ARCHITECTURE: Final = "gpt_oss"


class Speech(Protocol):
    def spelled(self, text: str) -> tuple[int, ...]:
        """The tokens of text in which control tokens stand by their names."""
        ...

    def encode(self, segments: Sequence[Segment]) -> tuple[int, ...]:
        """Only in control segments is a name a control token."""
        ...

    def decode(self, tokens: Sequence[int]) -> str: ...

    def read(self, prompt: TextPrompt | TokenPrompt) -> Reading: ...

    def speak(self, said: Answer, work: Work, reading: Reading, room: int | None) -> Spoken: ...

    def voice(self, work: Work) -> Voice: ...


@cache
def harmony() -> Speech:
    speech: Speech = import_module("antiphon.engines.fake.harmony").Harmony()
    return speech
