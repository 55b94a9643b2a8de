"""Probes an engine without making it generate, periodically and soon after a failure.

    unknown ──probe succeeds──▶ healthy ──probe or request fails──▶ unavailable ──probe succeeds──▶ healthy …

An engine that is down at startup does not prevent the start; a single timeout only leads to another probe.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.json import Decoder

from antiphon.core.prompt import Json
from antiphon.engines.base import Model, PromptLevel, Task
from antiphon.engines.client import EngineClient, EngineHttpError
from antiphon.engines.http.error_mapping import error_text
from antiphon.engines.http.readers import wire
from antiphon.errors import EngineFailed, StartupError, Unavailable

log = logging.getLogger(__name__)

MAX_CONCURRENT = 4  # concurrent probes
ABSENT_STATUSES = frozenset({404, 405, 501})  # no such path; 501: llama.cpp was started without the feature
ANY_JSON: Decoder[Any] = Decoder()

HEALTHY_INTERVAL = 15.0
PROBE_SECONDS = 10.0
FIRST_RETRY_DELAY = 0.25
MAX_RETRY_DELAY = 10.0
_AUTH_STATUSES = frozenset({401, 403})


class ProbedCapabilities(Struct, frozen=True, kw_only=True):
    """Capabilities of a running engine, probed at the first contact and when its models or its version change."""

    can_count_tokens: bool = False  # whether it counts the tokens of a chat
    raw_levels: frozenset[PromptLevel] = frozenset()  # accepted forms of raw prompts
    tasks: dict[str, frozenset[Task]] = {}  # by model; nothing is known of a model that is missing
    unsupported_reasons: dict[str, str] = {}  # field of the table that this server lacks → reason
    parsers: dict[str, str] = {}
    architecture: str | None = None  # of its model, if reported
    template_source: str = ""  # its model's chat template, if reported
    vocabulary_size: int | None = None  # token ids are below this; probed where an invalid id would do harm
    reasoning_openers: tuple[tuple[int, ...], ...] = ()  # token sequences at the end of a prompt that begin reasoning
    template_has_tools: bool = True  # whether the model's template describes tools
    takes_effort: bool | None = None  # whether the reasoning effort changes the rendered prompt; None: unknown


class Probe(Struct, frozen=True, kw_only=True):
    version: str | None = None
    models: tuple[Model, ...] = ()
    contexts: dict[str, int] = {}  # tokens of prompt and output together by model, where reported
    slots: int | None = None
    capabilities: ProbedCapabilities = ProbedCapabilities()


EMPTY_PROBE = Probe()


class ProbeClient:
    def __init__(self, client: EngineClient) -> None:
        self._client = client
        self._semaphore = asyncio.Semaphore(MAX_CONCURRENT)
        self._missing: tuple[str, ...] = ()  # configured models that the engine does not list

    async def list_models(self, api: str, wanted: tuple[str, ...]) -> list[wire.ModelCard]:
        """Return the models by the names that requests use; only the configured ones if there are any."""
        cards = {card.id: card for card in await self._fetch_cards(api, bool(wanted)) if card.id}
        self._warn_missing(tuple([name for name in wanted if cards and name not in cards]))
        return [cards.get(name) or wire.ModelCard(id=name) for name in wanted or cards]

    def _warn_missing(self, missing: tuple[str, ...]) -> None:
        """Warn once: some models have other names than those listed, others are misspelt."""
        if missing and missing != self._missing:
            log.warning("%s does not list these configured models: %s", self._client.label, ", ".join(missing))
        self._missing = missing

    async def _fetch_cards(self, api: str, optional: bool) -> list[wire.ModelCard]:
        try:
            return (await self._client.get(f"{api}/models", wire.MODELS)).data or []
        except EngineHttpError as error:
            if error.status_code == 404 and optional:
                return []  # not every server lists its models
            raise

    async def fetch_version(self, path: str) -> str | None:
        try:
            return (await self._client.get(path, wire.VERSION_REPLY)).version if path else None
        except EngineFailed:
            return None  # nothing depends on the version

    async def has_path(self, path: str) -> bool:
        """Return whether a path exists: an empty request to it is rejected because of missing fields."""
        return await self.fetch_error_text(path, {}) is not None

    async def fetch_error_text(self, path: str, body: Json) -> str | None:
        """Return the error text for a request that should be rejected; "" if it is accepted, None without the path."""
        try:
            async with self._semaphore:
                await self._client.post(path, msgspec.json.encode(body), ANY_JSON)
        except EngineHttpError as error:
            return None if error.status_code in ABSENT_STATUSES else error_text(error.body)
        except EngineFailed:
            return ""  # a response, although not the expected JSON
        return ""


class HealthMonitor:
    """Background task that probes one engine. `location` is for log messages."""

    def __init__(self, label: str, location: str, probe: Callable[[], Awaitable[Probe]]) -> None:
        self._label = label
        self._location = location
        self._probe = probe
        self._task: asyncio.Task[None] | None = None
        self._wake = asyncio.Event()
        self._failures = 0
        self.last_probe: Probe | None = None  # last successful probe, even if the engine is unavailable now
        self.is_healthy = False

    async def start(self) -> None:
        """Probe once and start the task; raise StartupError for a rejected key, since waiting would not help."""
        try:
            await self._check()
        except EngineHttpError as error:
            raise StartupError(
                f"{self._label} at {self._location} refused access (HTTP status {error.status_code}): set its key by "
                "--engine-key, ANTIPHON_ENGINE_KEY or `key` in its table, and check that it allows this host name."
            ) from None
        self._task = asyncio.create_task(self._run(), name=f"health monitor of {self._location}")

    async def stop(self) -> None:
        task, self._task = self._task, None
        self.is_healthy = False
        if task is not None:
            task.cancel()
            await asyncio.wait([task])

    def probe_soon(self) -> None:
        """Probe at once, because a request could not be delivered."""
        self._wake.set()

    async def _run(self) -> None:
        while True:
            try:
                async with asyncio.timeout(self._next_delay()):
                    await self._wake.wait()
            except TimeoutError:
                pass
            self._wake.clear()
            try:
                await self._check()
            except EngineHttpError as error:
                self._record_failure(error)

    def _next_delay(self) -> float:
        delay = min(FIRST_RETRY_DELAY * 2 ** min(self._failures - 1, 16), MAX_RETRY_DELAY)
        return delay if self._failures else HEALTHY_INTERVAL

    async def _check(self) -> None:
        try:
            async with asyncio.timeout(PROBE_SECONDS):
                probe = await self._probe()
        except TimeoutError:
            self._record_failure(EngineFailed(f"{self._label} did not answer in time."))
        except EngineHttpError as http_error:
            if http_error.status_code in _AUTH_STATUSES:
                raise
            self._record_failure(http_error)
        except (EngineFailed, Unavailable) as error:
            self._record_failure(error)
        else:
            self._record_success(probe)

    def _record_success(self, probe: Probe) -> None:
        if not self.is_healthy:
            names = ", ".join(model.id for model in probe.models[:5])
            version = f", version {probe.version}" if probe.version else ""
            log.info("%s at %s is available%s; models: %s", self._label, self._location, version, names or "none")
        if probe != self.last_probe:
            self.last_probe = probe
        self.is_healthy, self._failures = True, 0

    def _record_failure(self, error: EngineFailed | Unavailable) -> None:
        self._failures += 1
        is_timeout = isinstance(error, EngineFailed) and not isinstance(error, EngineHttpError)
        if is_timeout and self.is_healthy and self._failures == 1:
            return  # a busy engine may miss one probe
        if self.is_healthy or (self.last_probe is None and self._failures == 1):
            log.warning(
                "%s at %s is unavailable (%s); probing it until it responds", self._label, self._location, error
            )
        self.is_healthy = False
