"""Shared by the tests of runs and completion runs: a generation request, and a log of ended runs."""

from typing import Any

from antiphon.core.prompt import ChatPrompt, GenerationRequest, Sampling

GENERATION = GenerationRequest(
    model="fake", prompt=ChatPrompt(messages=({"role": "user", "content": "hi"},)), sampling=Sampling()
)


class EndLog:
    """End callback that records each run it is called with."""

    def __init__(self) -> None:
        self.runs: list[Any] = []

    def __call__(self, run: object) -> None:
        self.runs.append(run)
