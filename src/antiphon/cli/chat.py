"""Interactive chat in the terminal. The server stores nothing: each request carries the whole conversation.

Ctrl-C stops the current answer (closing the connection cancels the response), Ctrl-D exits.
"""

import importlib
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import click
import msgspec

from antiphon.cli.client import CONTROL_CHARACTERS, EVENT, ResponseReply, ServerClient, StreamedEvent
from antiphon.engines.client import EventStream
from antiphon.errors import RequestFailed

HELP = """\
/new    start a new conversation
/help   show this
Ctrl-C  stop the answer    Ctrl-D  exit"""

TEXT_EVENTS = {"response.output_text.delta", "response.refusal.delta"}
REASONING_EVENTS = {"response.reasoning_text.delta", "response.reasoning_summary_text.delta"}


class ChatSession:
    """A conversation. `request_fields` are sent with every request: model, instructions, reasoning effort."""

    def __init__(self, client: ServerClient, request_fields: dict[str, Any]) -> None:
        self._client = client
        self._request_fields = request_fields
        self._items: list[Any] = []
        self.succeeded = True

    def run(self) -> None:
        """Read questions and print answers until the input ends."""
        for question in _read_questions():
            match question.strip():
                case "":
                    pass
                case "/new":
                    self._items.clear()
                    _print_remark("New conversation started.")
                case "/help":
                    click.echo(HELP)
                case command if command.startswith("/") and " " not in command:
                    _print_remark(f"Unknown command: {command}\n{HELP}")
                case text:
                    self.send(text)

    def send(self, question: str) -> None:
        """Send one question and print the answer, which is added to the conversation, as far as it was received."""
        # replaces invalid bytes from the shell
        message = {"role": "user", "content": question.encode("utf-8", "replace").decode()}
        printer = AnswerPrinter()
        try:
            response = self._client.run(self._request_answer(message, printer))
        except RequestFailed as error:
            self.succeeded = False
            _print_remark(str(error))
        except KeyboardInterrupt:
            _print_remark("(stopped)")
            self._items += [message, {"role": "assistant", "content": printer.text}] if printer.text else []
        else:
            self._items += [message, *response.output]

    async def _request_answer(self, message: dict[str, str], printer: "AnswerPrinter") -> ResponseReply:
        body = {**self._request_fields, "input": [*self._items, message], "stream": True, "store": False}
        with closing(await self._client.http.post_stream("/responses", msgspec.json.encode(body), EVENT)) as stream:
            return await printer.print_all(stream)


class AnswerPrinter:
    """Prints the events of one response."""

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self._in_reasoning = False
        self._started = time.monotonic()

    @property
    def text(self) -> str:
        return "".join(self._pieces)

    async def print_all(self, stream: EventStream[StreamedEvent]) -> ResponseReply:
        """Print all events and return the response of the terminal event. The output always ends with a newline."""
        try:
            async for events in stream:
                for event in events:
                    if (response := self._print_event(event)) is not None:
                        self._print_summary(response)
                        return response
        finally:
            click.echo()
        raise RequestFailed("The stream ended without a terminal event.")

    def _print_event(self, event: StreamedEvent) -> ResponseReply | None:
        """Print an event. Returns the response if this is a terminal event."""
        match event.type:
            case kind if kind in TEXT_EVENTS:
                self._print_text(event.delta)
            case kind if kind in REASONING_EVENTS:
                self._print_reasoning(event.delta)
            case "response.completed" | "response.incomplete":
                return event.response
            case "response.failed" | "error":
                raise RequestFailed(event.error_message or "The server failed without an error message.")
        return None

    def _print_text(self, text: str) -> None:
        if self._in_reasoning:
            click.echo("\n")
            self._in_reasoning = False
        self._pieces.append(text)
        _write(text)

    def _print_reasoning(self, text: str) -> None:
        """Print reasoning on a terminal only: a pipe receives the answer alone."""
        if sys.stdout.isatty():
            self._in_reasoning = True
            _write(text, dim=True)

    def _print_summary(self, response: ResponseReply) -> None:
        if response.incomplete_details:
            _print_remark(f"(incomplete: {response.incomplete_details.reason})")
        if sys.stdout.isatty() and response.usage:
            seconds = max(time.monotonic() - self._started, 0.001)
            tokens = response.usage.output_tokens or 0
            click.secho(f"{tokens} tokens in {seconds:.1f} s, {tokens / seconds:.0f} tokens/s", dim=True)


def _read_questions() -> Iterator[str]:
    if not sys.stdin.isatty():
        yield from (line.decode("utf-8", "replace") for line in sys.stdin.buffer)
        return
    importlib.import_module("readline")  # enables line editing and history of input()
    while True:
        try:
            yield input("> ")
        except KeyboardInterrupt:
            click.secho("\nPress Ctrl-D to exit.", dim=True)
        except EOFError:
            click.echo()
            return


def _write(text: str, *, dim: bool = False) -> None:
    printable = text.translate(CONTROL_CHARACTERS)
    click.echo(click.style(printable, dim=True) if dim else printable, nl=False)  # echo flushes


def _print_remark(text: str) -> None:
    """Print to stderr, so that stdout carries answers only."""
    click.secho(text.translate(CONTROL_CHARACTERS), dim=True, err=True)
