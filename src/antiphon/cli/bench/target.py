"""A server to be measured: found by its URL, asked which models and which APIs it has, then asked for answers.

Its key is sent to it and shown to nobody, whatever the server says about it.

What a bench hears of an answer: when something of it came, how many tokens it had, and whether it ended well.

One reader for each API, one of its objects for each answer. Events are decoded as far as they matter.

One answer as it comes: what is read together has one time.
"""

import re
from array import array
from collections.abc import Iterable, Iterator, Sequence
from time import perf_counter
from typing import Any, Protocol, TypeVar
from urllib.parse import SplitResult, urlsplit

import msgspec
from msgspec import Struct
from msgspec.json import Decoder

from antiphon.cli.bench.figures import Answered
from antiphon.cli.bench.plan import Plan
from antiphon.cli.chat import UNPRINTABLE
from antiphon.cli.client import ModelList, Unanswered, Unreachable
from antiphon.engines.client import Client, Deadlines, Refused
from antiphon.engines.connection import Broken, TcpAddress, trusted
from antiphon.engines.http.readers.wire import COMPLETION, Completion
from antiphon.errors import AntiphonError, EngineFailed, StartupError, Unavailable

T = TypeVar("T", contravariant=True)


class Reader(Protocol[T]):
    input_tokens: int | None
    output_tokens: int | None
    ended: bool  # the server said that this was all
    fault: str | None  # what it said went wrong

    def feed(self, events: Iterable[T]) -> int:
        """How many of them have something of the answer in them."""


class ResponseUsage(Struct, gc=False):
    input_tokens: int | None = None
    output_tokens: int | None = None


class ToldResponse(Struct, gc=False):
    usage: ResponseUsage | None = None
    error: Any = None


class ResponseEvent(Struct, gc=False):
    type: str = ""
    response: ToldResponse | None = None
    error: Any = None
    message: str | None = None


RESPONSE_EVENT = Decoder(ResponseEvent)


class ResponsesReader:
    def __init__(self) -> None:
        self.input_tokens: int | None = None
        self.output_tokens: int | None = None
        self.ended = False
        self.fault: str | None = None

    def feed(self, events: Iterable[ResponseEvent]) -> int:
        heard = 0
        for event in events:
            if event.type.endswith(".delta"):
                heard += 1
            elif event.type in ("response.completed", "response.incomplete"):
                self._end(event.response or ToldResponse())
            elif event.type in ("response.failed", "response.cancelled", "error"):
                told = event.response.error if event.response else event.error or event.message
                self.fault = self.fault or words(told) or event.type
        return heard

    def _end(self, response: ToldResponse) -> None:
        self.ended = True
        if response.usage is not None:
            self.input_tokens = response.usage.input_tokens
            self.output_tokens = response.usage.output_tokens


class ChatReader:
    def __init__(self) -> None:
        self.input_tokens: int | None = None
        self.output_tokens: int | None = None
        self.ended = False
        self.fault: str | None = None

    def feed(self, events: Iterable[Completion]) -> int:
        heard = 0
        for event in events:
            for choice in event.choices or ():
                delta = choice.delta
                if delta is not None and (
                    delta.content or delta.reasoning_content or delta.reasoning or delta.tool_calls or delta.refusal
                ):
                    heard += 1
                if choice.finish_reason:
                    self.ended = True
            if event.usage is not None:
                self.input_tokens = event.usage.prompt_tokens
                self.output_tokens = event.usage.completion_tokens
            if event.error is not None:
                self.fault = words(event.error) or "it failed without a word"
        return heard


class Api(Struct, frozen=True):
    """Where its answers are asked for, and how they are read."""

    name: str
    path: str
    decoder: Decoder[Any]
    reader: type[ResponsesReader] | type[ChatReader]

    def body(self, model: str, prompt: str, most: int) -> dict[str, Any]:
        asked = {"model": model, "stream": True}
        if self.name == "responses":
            return {**asked, "input": prompt, "max_output_tokens": most, "store": False}
        messages = [{"role": "user", "content": prompt}]
        return {**asked, "messages": messages, "max_tokens": most, "stream_options": {"include_usage": True}}


RESPONSES = Api("responses", "/responses", RESPONSE_EVENT, ResponsesReader)
CHAT = Api("chat", "/chat/completions", COMPLETION, ChatReader)
APIS = {api.name: api for api in (RESPONSES, CHAT)}


def words(error: Any) -> str:
    """{"error": {"message": …}}, {"message": …}, {"detail": …} or a text."""
    for _ in range(3):
        if isinstance(error, dict):
            error = next((error[name] for name in ("error", "message", "detail") if error.get(name)), "")
    return error.strip() if isinstance(error, str) else ""


class Pulse:
    """Pieces of answers that came since the program began: for those who watch."""

    def __init__(self) -> None:
        self.pieces = 0


class Hearing:
    def __init__(self, api: Api, pulse: Pulse) -> None:
        self.reader = api.reader()
        self._gaps = array("d")
        self._pulse = pulse
        self._pieces = 0
        self._first = self._last = self._read = 0.0

    def feed(self, events: Sequence[Any]) -> None:
        pieces = self.reader.feed(events)
        self._read = now = perf_counter()
        if not pieces:
            return
        if not self._pieces:
            self._first = now
        else:
            self._gaps.append(now - self._last)
        self._last = now
        self._pieces += pieces
        self._pulse.pieces += pieces

    def answered(self, who: str, begun: float) -> Answered:
        """All of it has come. EngineFailed if that is not what was asked for."""
        reader = self.reader
        if reader.fault is not None:
            raise EngineFailed(f"{who} failed in the stream: {reader.fault}")
        if not reader.ended:
            raise EngineFailed(f"{who} stopped in the middle of its answer.")
        if not self._pieces:
            raise EngineFailed(f"{who} answered without a single token.")
        return Answered(
            begun=begun,
            first=self._first,
            last=self._last,
            ended=self._read,
            pieces=self._pieces,
            gaps=self._gaps,
            input_tokens=reader.input_tokens,
            output_tokens=reader.output_tokens,
        )


MODELS = Decoder(ModelList)
CONNECT_SECONDS = 10.0
LAST_SECONDS = 1.0  # between the end of an answer and that of its stream
PROBE_TOKENS = 16  # OpenAI takes no fewer
MOST_WORDS = 300
ABSENT = frozenset({404, 405, 501})
PORTS = {"http": 80, "https": 443}
_VERSION = re.compile(r"/v\d+$")
_KEY = "Its key is given as --key, or as ANTIPHON_API_KEY."


class Refusal(Struct, frozen=True):
    """A server does not answer over an API; `absent` if it seems not to have it at all."""

    sentence: str
    absent: bool = False


class Target:
    def __init__(self, url: str, key: str | None, plan: Plan, pulse: Pulse, numbers: Iterator[int]) -> None:
        """`numbers` tells the prompts of all requests apart."""
        parts = _parts(url)
        port = parts.port or PORTS[parts.scheme]
        address = TcpAddress(parts.hostname or "", port, trusted() if parts.scheme == "https" else None)
        deadlines = Deadlines(connect=CONNECT_SECONDS, first=plan.timeout, idle=plan.timeout)
        self.url = url.rstrip("/")
        self.api = RESPONSES
        self.model = plan.model or ""
        self._plan = plan
        self._pulse = pulse
        self._root = parts.path if _VERSION.search(parts.path) else f"{parts.path}/v1"
        self._client = Client(address, self.url, deadlines, plan.most_at_once, parts.netloc, key)
        self._numbers = numbers

    def close(self) -> None:
        self._client.close()

    async def meet(self) -> None:
        """Find a model to ask for."""
        if self.model:
            return
        try:
            known = await self._client.get(f"{self._root}/models", MODELS)
        except Refused as refused:
            self._refused_key(refused)
            raise Unanswered(f"{self.url} does not list its models (HTTP {refused.answered}): name one with --model.")
        except Unavailable as error:
            raise Unreachable(self.told(error))
        except EngineFailed as error:
            raise Unanswered(f"{self.told(error)} Is it an OpenAI-compatible server?")
        if not known.data:
            raise Unanswered(f"{self.url} has no model.")
        self.model = known.data[0].id

    async def refusal(self, api: Api) -> Refusal | None:
        """If it does not answer over this API; Unanswered where another one could not do better."""
        self.api = api
        try:
            await self.ask(0.0, PROBE_TOKENS)
        except Refused as refused:
            self._refused_key(refused)
            return Refusal(self.told(refused), absent=refused.answered in ABSENT)
        except Unavailable as error:
            raise Unreachable(self.told(error))
        except EngineFailed as error:
            return Refusal(self.told(error))
        return None

    async def ask(self, begun: float, most: int) -> Answered:
        """One answer, read to its end. AntiphonError if it does not end well."""
        api = self.api
        asked = api.body(self.model, self._plan.prompt_of(next(self._numbers)), most)
        body = msgspec.json.encode(self._plan.mixed(asked))
        stream = await self._client.stream(self._root + api.path, body, api.decoder)
        hearing = Hearing(api, self._pulse)
        try:
            async for events in stream:
                hearing.feed(events)
                if hearing.reader.ended:
                    stream.hurry(LAST_SECONDS)
        except Broken:
            if not hearing.reader.ended:
                raise
        finally:
            stream.close()
        return hearing.answered(self.url, begun)

    def told(self, error: AntiphonError) -> str:
        """A sentence for a terminal, with what the server said of it."""
        said = error.message
        if isinstance(error, Refused):
            explained = _explained(error.body)
            said = f"{self.url} says {error.answered}" + (f": {explained}" if explained else "")
        said = self._client.hushed(said.encode("utf-8", "replace")).decode()
        return f"{said[:MOST_WORDS].translate(UNPRINTABLE).strip().rstrip('.')}."

    def kind(self, error: AntiphonError) -> str:
        """What failures are counted by."""
        if isinstance(error, Refused):
            return f"HTTP {error.answered}"
        return self.told(error).removeprefix(self.url).strip(" .")

    def _refused_key(self, refused: Refused) -> None:
        if refused.answered in (401, 403):
            raise Unanswered(f"{self.told(refused)} {_KEY}")


def _parts(url: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        parts, port = urlsplit(""), 0
    if parts.username is not None or parts.password is not None:
        raise StartupError("A key does not belong into a URL: give it as --key, or as ANTIPHON_API_KEY.")
    plain = not (parts.query or parts.fragment) and all("!" <= character <= "~" for character in url)
    if parts.scheme not in PORTS or not parts.hostname or port == 0 or not plain:
        raise StartupError(f"{url!r} is not a server's address; expected something like http://127.0.0.1:8000.")
    return parts._replace(path=parts.path.rstrip("/"))


def _explained(body: bytes) -> str:
    try:
        return words(msgspec.json.decode(body))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return ""  # a page of HTML, most likely
