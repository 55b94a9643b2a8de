"""A server under measurement: discovery of its models and APIs, requests, and the timing of answers.

Events that are read together have the same time. The API key is sent to its server only, and is redacted from all
messages.
"""

import re
from collections.abc import Iterator
from time import perf_counter
from urllib.parse import SplitResult, urlsplit

import msgspec
from msgspec.json import Decoder

from antiphon.cli.bench.apis import RESPONSES, BenchApi, extract_message
from antiphon.cli.bench.figures import Answer
from antiphon.cli.bench.plan import BenchPlan
from antiphon.cli.chat import CONTROL_CHARACTERS
from antiphon.cli.client import ModelListReply, RequestFailed, ServerUnreachable
from antiphon.engines.client import EngineClient, EngineHttpError, EngineTimeouts
from antiphon.engines.connection import ResponseInterrupted, TcpAddress, create_tls_context
from antiphon.errors import AntiphonError, EngineFailed, StartupError, Unavailable

MODEL_LIST = Decoder(ModelListReply)
CONNECT_SECONDS = 10.0
STREAM_END_SECONDS = 1.0  # seconds from the end of an answer to the end of its stream
PROBE_TOKENS = 16  # the minimum of OpenAI's API
MAX_MESSAGE_LENGTH = 300
ABSENT_STATUSES = frozenset({404, 405, 501})
DEFAULT_PORTS = {"http": 80, "https": 443}
_VERSION_SUFFIX = re.compile(r"/v\d+$")
_KEY_HINT = "Set its key with --key or ANTIPHON_API_KEY."


class ApiRefused(Exception):
    """A server does not answer over an API. `is_absent`: it does not seem to have this API."""

    def __init__(self, message: str, is_absent: bool = False) -> None:
        super().__init__(message)
        self.is_absent = is_absent


class BenchTarget:
    """One server of the benchmark. `numbers` makes the prompts of all requests distinct."""

    def __init__(self, url: str, key: str | None, plan: BenchPlan, numbers: Iterator[int]) -> None:
        parts = _parse_url(url)
        port = parts.port or DEFAULT_PORTS[parts.scheme]
        address = TcpAddress(parts.hostname or "", port, create_tls_context() if parts.scheme == "https" else None)
        timeouts = EngineTimeouts(connect=CONNECT_SECONDS, first_byte=plan.timeout, idle=plan.timeout)
        self.url = url.rstrip("/")
        self.api = RESPONSES
        self.model = plan.model or ""
        self.events = 0  # content events received so far
        self._plan = plan
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
        except EngineHttpError as error:
            self._check_key_error(error)
            raise RequestFailed(
                f"{self.url} does not list its models (HTTP {error.status_code}): set one with --model."
            )
        except Unavailable as error:
            raise ServerUnreachable(self.describe_error(error))
        except EngineFailed as error:
            raise RequestFailed(f"{self.describe_error(error)} Is it an OpenAI-compatible server?")
        if not models.data:
            raise RequestFailed(f"{self.url} has no model.")
        self.model = models.data[0].id

    async def probe_api(self, api: BenchApi) -> None:
        """Select an API and send a probe.

        Raises ApiRefused if the server does not support the API, RequestFailed if another one could not work either.
        """
        self.api = api
        try:
            await self.request_answer(0.0, PROBE_TOKENS)
        except EngineHttpError as error:
            self._check_key_error(error)
            raise ApiRefused(self.describe_error(error), error.status_code in ABSENT_STATUSES)
        except Unavailable as error:
            raise ServerUnreachable(self.describe_error(error))
        except EngineFailed as error:
            raise ApiRefused(self.describe_error(error))

    async def request_answer(self, due: float, max_tokens: int) -> Answer:
        """Send one request and read the answer to its end. Raises AntiphonError if it fails."""
        api = self.api
        fields = api.make_body(self.model, self._plan.make_prompt(next(self._numbers)), max_tokens)
        body = msgspec.json.encode(self._plan.add_extra_fields(fields))
        stream = await self._client.post_stream(self._root + api.path, body, api.decoder)
        answer = api.answer(due)
        try:
            async for events in stream:
                self.events += answer.feed(events, perf_counter())
                if answer.is_complete:
                    stream.shorten_timeout(STREAM_END_SECONDS)
        except ResponseInterrupted:
            if not answer.is_complete:
                raise
        finally:
            stream.close()
        self._check_answer(answer)
        return answer

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

    def _check_answer(self, answer: Answer) -> None:
        if answer.fault is not None:
            raise EngineFailed(f"{self.url} reported an error in the stream: {answer.fault}")
        if not answer.is_complete:
            raise EngineFailed(f"{self.url} ended the stream before the end of the answer.")
        if not answer.content_events:
            raise EngineFailed(f"{self.url} returned no tokens.")

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
