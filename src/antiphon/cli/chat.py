"""A conversation at the terminal. The server keeps nothing: each question is sent with all that went before.

Ctrl-C stops an answer (the connection closes, which cancels the work), Ctrl-D leaves.
"""

import importlib
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import click

from antiphon.cli.client import Answer, Client, Heard, Json, Unanswered

HELP = """\
/new    start a new conversation
/help   show this
Ctrl-C  stop the answer    Ctrl-D  leave"""

SPOKEN = {"response.output_text.delta", "response.refusal.delta"}
THOUGHT = {"response.reasoning_text.delta", "response.reasoning_summary_text.delta"}
# What a model says must not steer the terminal: control characters other than tab and newline are dropped.
UNPRINTABLE = {code: None for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"}


class Chat:
    """`asking` holds the fields that go with every question: the model, instructions, the effort."""

    def __init__(self, client: Client, asking: Json) -> None:
        self._client = client
        self._asking = asking
        self._items: list[Any] = []
        self.well = True

    def run(self) -> None:
        """Questions and answers until the input ends."""
        for question in _lines():
            match question.strip():
                case "":
                    pass
                case "/new":
                    self._items.clear()
                    _remark("A new conversation.")
                case "/help":
                    click.echo(HELP)
                case command if command.startswith("/") and " " not in command:
                    _remark(f"There is no {command} here.\n{HELP}")
                case asked:
                    self.ask(asked)

    def ask(self, question: str) -> None:
        """One question; its answer joins the conversation, or, where it was stopped, as much as was heard."""
        asked = {"role": "user", "content": question.encode("utf-8", "replace").decode()}  # no stray bytes of a shell
        telling = Telling()
        try:
            body = {**self._asking, "input": [*self._items, asked], "stream": True, "store": False}
            with closing(self._client.ask(body)) as events:
                answer = telling.all(events)
        except Unanswered as error:
            self.well = False
            _remark(str(error))
        except KeyboardInterrupt:
            _remark("(stopped)")
            self._items += [asked, {"role": "assistant", "content": telling.said}] if telling.said else []
        else:
            self._items += [asked, *answer.output]


class Telling:
    """One answer on its way to the screen."""

    def __init__(self) -> None:
        self._said: list[str] = []
        self._thinking = False
        self._started = time.monotonic()

    @property
    def said(self) -> str:
        return "".join(self._said)

    def all(self, events: Iterator[Heard]) -> Answer:
        """Show what comes; the terminal event's answer. Whatever happens, the next thing starts on a new line."""
        try:
            answer = self._follow(events)
        finally:
            click.echo()
        self._sum_up(answer)
        return answer

    def _follow(self, events: Iterator[Heard]) -> Answer:
        for event in events:
            match event.type:
                case kind if kind in SPOKEN:
                    self._speak(event.delta)
                case kind if kind in THOUGHT:
                    self._think(event.delta)
                case "response.completed" | "response.incomplete" if event.response:
                    return event.response
                case "response.failed" | "error":
                    told = event.response.error if event.response and event.response.error else event
                    raise Unanswered(told.message or "The server failed without a word.")
        raise Unanswered("The answer ended without saying so.")

    def _speak(self, text: str) -> None:
        if self._thinking:
            click.echo("\n")
            self._thinking = False
        self._said.append(text)
        _say(text)

    def _think(self, text: str) -> None:
        """Thoughts are for people: a pipe gets the answer alone."""
        if sys.stdout.isatty():
            self._thinking = True
            _say(text, dim=True)

    def _sum_up(self, answer: Answer) -> None:
        if answer.incomplete_details:
            _remark(f"(cut off: {answer.incomplete_details.reason})")
        if sys.stdout.isatty() and answer.usage:
            seconds = max(time.monotonic() - self._started, 0.001)
            tokens = answer.usage.output_tokens
            click.secho(f"{tokens} tokens in {seconds:.1f} s, {tokens / seconds:.0f} a second", dim=True)


def _lines() -> Iterator[str]:
    if not sys.stdin.isatty():
        yield from (line.decode("utf-8", "replace") for line in sys.stdin.buffer)
        return
    importlib.import_module("readline")  # gives input() its line editing and history
    while True:
        try:
            yield input("> ")
        except KeyboardInterrupt:
            click.secho("\nCtrl-D leaves.", dim=True)
        except EOFError:
            click.echo()
            return


def _say(text: str, *, dim: bool = False) -> None:
    shown = text.translate(UNPRINTABLE)
    click.echo(click.style(shown, dim=True) if dim else shown, nl=False)  # and flushes


def _remark(text: str) -> None:
    """Beside the conversation, so that a pipe carries answers only."""
    click.secho(text.translate(UNPRINTABLE), dim=True, err=True)
