"""The only file that knows everyone: Config → engine → service → app.

An engine's settings are filled from Config by name: `rate` of the fake engine is `fake_rate`, `context` is `context`.
What Config leaves open (None) is the engine's to decide.
"""

from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.metadata import version
from typing import Any, get_args, get_type_hints

from antiphon.agent.patience import Deadlines
from antiphon.config import Config
from antiphon.engines.base import Engine
from antiphon.engines.registry import ENGINES
from antiphon.errors import StartupError
from antiphon.observe import Metrics, set_up_logging
from antiphon.protocol.events import StreamEvent
from antiphon.protocol.request import CreateResponse
from antiphon.protocol.response import Response
from antiphon.service.models import Models
from antiphon.service.prepare import OutputTokens
from antiphon.service.responses import Responses
from antiphon.transport import server
from antiphon.transport.app import App
from antiphon.transport.guard import Guard
from antiphon.transport.http import Route
from antiphon.transport.openapi import Docs
from antiphon.transport.responses import ResponsesEndpoint
from antiphon.transport.system import System

Announce = Callable[[str, list[str]], None]
Progress = Callable[[str, int, int], None]  # the task, what is done of it, the whole


class Lifecycle:
    """What is opened before the first request and closed after the last."""

    def __init__(self, engines: Sequence[Engine], responses: Responses) -> None:
        self._engines = engines
        self._responses = responses

    async def open(self) -> None:
        for engine in self._engines:
            await engine.open()

    async def close(self) -> None:
        for engine in self._engines:
            await engine.close()

    def interrupt(self) -> None:
        self._responses.interrupt()


def serve(config: Config, announce: Announce, progress: Progress) -> None:
    """Until a signal comes. `announce` is told the address and the models once clients can connect."""
    set_up_logging(config.log_format, config.log_level)
    engine = build_engine(config, progress)

    def tell(address: str) -> None:
        names = [model.id for model in engine.models()]
        announce(address, [*config.served_model_name, *names[1:]] if config.served_model_name else names)

    server.serve(build_app(config, engine), config, tell)


def build_app(config: Config, engine: Engine) -> App:
    metrics = Metrics(version("antiphon"))
    models = Models([engine], config.served_model_name, config.accept_any_model, config.queue)
    room = OutputTokens(default=config.default_output_tokens, most=config.max_output_tokens)
    deadlines = Deadlines(first=config.first_token_timeout, idle=config.idle_timeout, total=config.run_timeout)
    responses = Responses(models, room, deadlines, metrics)
    guard = Guard(config)
    endpoint = ResponsesEndpoint(responses, config.limits, config.ping_interval)
    shown = next((model.id for model in models.models()), "MODEL")
    routes = [_create(endpoint, shown), *System(models, metrics, guard, version("antiphon")).routes()]
    documented = [*routes, *Docs(routes, version("antiphon")).routes()]
    metrics.watch_engines(lambda: [(engine.name, model.id, engine.healthy()) for model in engine.models()])
    return App(documented, guard, metrics, Lifecycle([engine], responses))


def build_engine(config: Config, progress: Progress | None = None) -> Engine:
    """`progress` hears of fetches and loads, if the engine has any to tell of."""
    place = ENGINES.get(config.engine)
    if place is None:
        raise StartupError(f"There is no engine {config.engine!r}; expected {' or '.join(sorted(ENGINES))}.")
    module, _, name = place.partition(":")
    try:
        kind = getattr(import_module(module), name)
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("antiphon"):
            raise
        raise StartupError(f"The {config.engine} engine needs the package {error.name}, which is not installed here.")
    engine = kind(_settings(kind, config))
    if hasattr(engine, "on_progress"):
        engine.on_progress = progress
    built: Engine = engine
    return built


def _settings(engine: type, config: Config) -> Any:
    hint = get_type_hints(engine.__init__)["settings"]  # type: ignore[misc]  # of the class as registered
    kind = next(iter(get_args(hint)), hint)
    found = ((name, _value(config, name)) for name in kind.__struct_fields__)
    return kind(**{name: value for name, value in found if value is not None})


def _value(config: Config, name: str) -> Any:
    own = f"{config.engine}_{name}"
    return getattr(config, own) if hasattr(config, own) else getattr(config, name, None)


def _create(endpoint: ResponsesEndpoint, model: str) -> Route:
    return Route(
        method="POST",
        path="/v1/responses",
        endpoint=endpoint.create,
        summary="Create a response",
        description="One JSON body, or with `stream: true` server-sent events that end with `[DONE]`.",
        takes=CreateResponse,
        example={"model": model, "input": "Hello!"},
        gives=Response,
        streams=StreamEvent,
        new_work=True,
        errors=(400, 404, 413, 415, 429, 500, 503),
    )
