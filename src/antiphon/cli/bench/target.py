"""A server to be measured: found by its URL, asked which models and which APIs it has, then asked for answers.

Its key is sent to it and shown to nobody, whatever the server says about it.
"""

import re
from collections.abc import Iterator
from urllib.parse import SplitResult, urlsplit

import msgspec
from msgspec import Struct
from msgspec.json import Decoder

from antiphon.cli.bench.figures import Answered
from antiphon.cli.bench.hearing import Hearing, Pulse
from antiphon.cli.bench.plan import Plan
from antiphon.cli.bench.reading import RESPONSES, Api, words
from antiphon.cli.chat import UNPRINTABLE
from antiphon.cli.client import ModelList, Unanswered, Unreachable
from antiphon.engines.client import Client, Deadlines, Refused
from antiphon.engines.connection import Broken, TcpAddress, trusted
from antiphon.errors import AntiphonError, EngineFailed, StartupError, Unavailable

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
