"""What the tests of runs and of exchanges share: a work to do, and who is told of the end."""

from typing import Any

from antiphon.core.prompt import ChatPrompt, Sampling, Work

WORK = Work(model="fake", prompt=ChatPrompt(messages=({"role": "user", "content": "hi"},)), sampling=Sampling())


class Ends:
    """Counts how often one said that it ended."""

    def __init__(self) -> None:
        self.told: list[Any] = []

    def __call__(self, ended: object) -> None:
        self.told.append(ended)
