"""A server under measurement: discovery of its models and APIs, requests, and the timing of answers.

Events that are read together have the same time.

The API key is sent to its server only, and is redacted from all messages.
"""

import re
from array import array
from collections.abc import Iterator, Sequence
from time import perf_counter
from typing import Any
from urllib.parse import SplitResult, urlsplit

import msgspec
from msgspec import Struct
from msgspec.json import Decoder

from antiphon.cli.bench.apis import RESPONSES, BenchApi, extract_message
from antiphon.cli.bench.figures import AnswerTiming
from antiphon.cli.bench.plan import BenchPlan
from antiphon.cli.chat import CONTROL_CHARACTERS
from antiphon.cli.client import ModelListReply, RequestFailed, ServerUnreachable
from antiphon.engines.client import EngineClient, EngineHttpError, EngineTimeouts
from antiphon.engines.connection import ResponseInterrupted, TcpAddress, create_tls_context
from antiphon.errors import AntiphonError, EngineFailed, StartupError, Unavailable


class EventCounter:
    """Number of content events received so far, for the progress line."""

    def __init__(self) -> None:
        self.events = 0


class AnswerRecorder:
    """Records when the parts of one answer arrive."""

    def __init__(self, api: BenchApi, counter: EventCounter) -> None:
        self.reader = api.reader()
        self._gaps = array("d")
        self._counter = counter
        self._content_events = 0
        self._first_token = self._last_token = self._last_read = 0.0

    def feed(self, events: Sequence[Any]) -> None:
        count = self.reader.feed(events)
        self._last_read = now = perf_counter()
        if not count:
            return
        if not self._content_events:
            self._first_token = now
        else:
            self._gaps.append(now - self._last_token)
        self._last_token = now
        self._content_events += count
        self._counter.events += count

    def to_timing(self, server: str, due: float) -> AnswerTiming:
        """Return the times of the complete answer. Raises EngineFailed if it failed, was cut off or is empty."""
        reader = self.reader
        if reader.fault is not None:
            raise EngineFailed(f"{server} reported an error in the stream: {reader.fault}")
        if not reader.ended:
            raise EngineFailed(f"{server} ended the stream before the end of the answer.")
        if not self._content_events:
            raise EngineFailed(f"{server} returned no tokens.")
        return AnswerTiming(
            due=due,
            first_token=self._first_token,
            last_token=self._last_token,
            ended=self._last_read,
            content_events=self._content_events,
            gaps=self._gaps,
            input_tokens=reader.input_tokens,
            output_tokens=reader.output_tokens,
        )


MODEL_LIST = Decoder(ModelListReply)
CONNECT_SECONDS = 10.0
STREAM_END_SECONDS = 1.0  # seconds from the end of an answer to the end of its stream
PROBE_TOKENS = 16  # the minimum of OpenAI's API
MAX_MESSAGE_LENGTH = 300
ABSENT_STATUSES = frozenset({404, 405, 501})
DEFAULT_PORTS = {"http": 80, "https": 443}
_VERSION_SUFFIX = re.compile(r"/v\d+$")
_KEY_HINT = "Set its key with --key or ANTIPHON_API_KEY."


class ApiRefusal(Struct, frozen=True):
    """A server does not answer over an API. `absent`: it does not seem to have this API."""

    message: str
    absent: bool = False


class BenchTarget:
    """One server of the benchmark."""

    def __init__(
        self, url: str, key: str | None, plan: BenchPlan, counter: EventCounter, numbers: Iterator[int]
    ) -> None:
        """`numbers` makes the prompts of all requests distinct."""
        parts = _parse_url(url)
        port = parts.port or DEFAULT_PORTS[parts.scheme]
        address = TcpAddress(parts.hostname or "", port, create_tls_context() if parts.scheme == "https" else None)
        timeouts = EngineTimeouts(connect=CONNECT_SECONDS, first_byte=plan.timeout, idle=plan.timeout)
        self.url = url.rstrip("/")
        self.api = RESPONSES
        self.model = plan.model or ""
        self._plan = plan
        self._counter = counter
        self._root = parts.path if _VERSION_SUFFIX.search(parts.path) else f"{parts.path}/v1"
        self._client = EngineClient(address, self.url, timeouts, plan.max_concurrency, parts.netloc, key)
        self._numbers = numbers

    def close(self) -> None:
        self._client.close()

    async def choose_model(self) -> None:
        """Choose the first model of the server, unless one is configured. Raises RequestFailed."""
        if self.model:
            return
        try:
            models = await self._client.get(f"{self._root}/models", MODEL_LIST)
        except EngineHttpError as http_error:
            self._check_key_error(http_error)
            raise RequestFailed(
                f"{self.url} does not list its models (HTTP {http_error.status_code}): set one with --model."
            )
        except Unavailable as error:
            raise ServerUnreachable(self.describe_error(error))
        except EngineFailed as error:
            raise RequestFailed(f"{self.describe_error(error)} Is it an OpenAI-compatible server?")
        if not models.data:
            raise RequestFailed(f"{self.url} has no model.")
        self.model = models.data[0].id

    async def probe_api(self, api: BenchApi) -> ApiRefusal | None:
        """Select an API and send a probe. Returns the refusal if the server does not support the API.

        Raises RequestFailed if another API could not work either.
        """
        self.api = api
        try:
            await self.request_answer(0.0, PROBE_TOKENS)
        except EngineHttpError as http_error:
            self._check_key_error(http_error)
            return ApiRefusal(self.describe_error(http_error), absent=http_error.status_code in ABSENT_STATUSES)
        except Unavailable as error:
            raise ServerUnreachable(self.describe_error(error))
        except EngineFailed as error:
            return ApiRefusal(self.describe_error(error))
        return None

    async def request_answer(self, due: float, max_tokens: int) -> AnswerTiming:
        """Send one request and read the answer to its end. Raises AntiphonError if it fails."""
        api = self.api
        fields = api.make_body(self.model, self._plan.make_prompt(next(self._numbers)), max_tokens)
        body = msgspec.json.encode(self._plan.add_extra_fields(fields))
        stream = await self._client.post_stream(self._root + api.path, body, api.decoder)
        recorder = AnswerRecorder(api, self._counter)
        try:
            async for events in stream:
                recorder.feed(events)
                if recorder.reader.ended:
                    stream.shorten_timeout(STREAM_END_SECONDS)
        except ResponseInterrupted:
            if not recorder.reader.ended:
                raise
        finally:
            stream.close()
        return recorder.to_timing(self.url, due)

    def describe_error(self, error: AntiphonError) -> str:
        """Return one sentence for the terminal, with the server's own message."""
        message = error.message
        if isinstance(error, EngineHttpError):
            detail = _decode_message(error.body)
            message = f"{self.url} returned HTTP {error.status_code}" + (f": {detail}" if detail else "")
        message = self._client.redact_key(message.encode("utf-8", "replace")).decode()
        return f"{message[:MAX_MESSAGE_LENGTH].translate(CONTROL_CHARACTERS).strip().rstrip('.')}."

    def classify_error(self, error: AntiphonError) -> str:
        """Return the kind of failure by which failures are counted."""
        if isinstance(error, EngineHttpError):
            return f"HTTP {error.status_code}"
        return self.describe_error(error).removeprefix(self.url).strip(" .")

    def _check_key_error(self, error: EngineHttpError) -> None:
        if error.status_code in (401, 403):
            raise RequestFailed(f"{self.describe_error(error)} {_KEY_HINT}")


def _parse_url(url: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        parts, port = urlsplit(""), 0
    if parts.username is not None or parts.password is not None:
        raise StartupError("The URL must not contain a key: use --key or ANTIPHON_API_KEY.")
    is_plain = not (parts.query or parts.fragment) and all("!" <= character <= "~" for character in url)
    if parts.scheme not in DEFAULT_PORTS or not parts.hostname or port == 0 or not is_plain:
        raise StartupError(f"{url!r} is not a server's address; expected something like http://127.0.0.1:8000.")
    return parts._replace(path=parts.path.rstrip("/"))


def _decode_message(body: bytes) -> str:
    try:
        return extract_message(msgspec.json.decode(body))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return ""  # most likely an HTML page
