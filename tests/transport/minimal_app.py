"""A minimal application to test the HTTP layer with, without engines and stores; it can also run as a process.

`python -m tests.transport.minimal_app '{"port": 0, "limits": {"header_seconds": 1}}'` prints its address once it
listens.
"""

import asyncio
import sys
from typing import Any

import msgspec
from msgspec import field

from antiphon.config import Config
from antiphon.engines.base import EngineStatus, Model
from antiphon.engines.fake import FakeEngine
from antiphon.errors import EngineFailed, ModelNotFound, StartupError
from antiphon.limits import Limits
from antiphon.observe import Metrics, set_up_logging
from antiphon.service.model_io.models import Models
from antiphon.transport.endpoints.openapi import DocsEndpoint
from antiphon.transport.http.request import Request
from antiphon.transport.middleware.app import App
from antiphon.transport.middleware.auth import Authenticator
from antiphon.transport.middleware.routing import Route, Router, collect_routes
from antiphon.transport.operating.system import SystemEndpoints
from antiphon.transport.process.server import serve


class FakeModelDirectory(Models):
    """Two models, and configurable reasons for not being ready."""

    reasons: list[str] = field(default_factory=list)
    engines: list[EngineStatus] = field(default_factory=list)

    def models(self) -> list[Model]:
        return [Model(id="small", created=1), Model(id="org/large", created=2, owned_by="org")]

    def model(self, name: str) -> Model:
        for model in self.models():
            if model.id == name:
                return model
        raise ModelNotFound(f"The model '{name}' does not exist here.", param="model")

    def ready(self) -> list[str]:
        return self.reasons

    def states(self) -> list[EngineStatus]:
        return self.engines


class FakeLifecycle:
    """`open` returns at once, never (engine "slow"), or raises StartupError (engine "broken")."""

    def __init__(self, engine: str) -> None:
        self.interrupted = asyncio.Event()
        self.calls: list[str] = []
        self._engine = engine

    async def open(self) -> None:
        self.calls.append("open")
        if self._engine == "broken":
            raise StartupError("The engine is broken.")
        if self._engine == "slow":
            sys.stderr.write("opening\n")
            await asyncio.Event().wait()

    async def close(self) -> None:
        self.calls.append("close")
        if self._engine != "llamacpp":
            sys.stderr.write("closed\n")

    def is_busy(self) -> bool:
        return False

    def reload(self) -> None:
        sys.stderr.write("reloaded\n")

    def drain(self) -> None:
        """No-op: there is no background work."""

    def interrupt(self) -> None:
        self.calls.append("interrupt")
        self.interrupted.set()


class MinimalApp:
    """The application with the system routes and a few test endpoints."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.directory = FakeModelDirectory(FakeEngine())
        self.lifecycle = FakeLifecycle(config.inference.specs[0].url)
        self.metrics = Metrics("1.2.3")
        self.authenticator = Authenticator(config)
        system = SystemEndpoints(self.directory, self.metrics, self.authenticator, "1.2.3")
        routes = [*self._make_test_routes(), *collect_routes(system)]
        self.routes = [*routes, *collect_routes(DocsEndpoint(routes, "1.2.3", Limits()))]
        self.app = App(Router(self.routes), self.authenticator, self.metrics, self.lifecycle)

    def _make_test_routes(self) -> list[Route]:
        return [
            Route("POST", "/v1/echo", "Echo", endpoint=self.echo, new_work=True),
            Route("DELETE", "/v1/echo", "Fail", endpoint=self.fail),
            Route("GET", "/v1/things/{thing}/parts/{part}", "A part", endpoint=self.show_part),
            Route("GET", "/v1/fail", "Fail", endpoint=self.fail),
            Route("GET", "/v1/break", "Fail in the middle of a reply", endpoint=self.break_reply),
            Route("GET", "/v1/engine", "A typed failure", endpoint=self.raise_engine_error),
            Route("GET", "/v1/flood", "Write without end", endpoint=self.flood),
            Route("GET", "/v1/wait", "Wait without a reply", endpoint=self.wait),
            Route("GET", "/v1/hang", "Write a chunk, then wait for the end", endpoint=self.hang),
        ]

    async def echo(self, request: Request) -> None:
        await request.reply(200, await request.read_body(self.config.limits))

    async def show_part(self, request: Request) -> None:
        await request.reply(200, msgspec.json.encode(request.params))

    async def fail(self, request: Request) -> None:
        raise ZeroDivisionError("an internal secret")

    async def break_reply(self, request: Request) -> None:
        await request.begin(200, [(b"content-type", b"text/plain")])
        await request.write(b"so far")
        raise ZeroDivisionError("an internal secret")

    async def raise_engine_error(self, request: Request) -> None:
        raise EngineFailed("The engine stopped.")

    async def flood(self, request: Request) -> None:
        """Write until the client disconnects, forever if it stays."""
        await request.begin(200, [(b"content-type", b"text/plain")])
        written = 0
        try:
            with request.channel:
                while True:
                    await request.write(b"x" * 16384)
                    written += 16384
                    await asyncio.sleep(0)
        finally:
            sys.stderr.write(f"flood ended after {written} bytes\n")

    async def wait(self, request: Request) -> None:
        await asyncio.Event().wait()

    async def hang(self, request: Request) -> None:
        await request.begin(200, [(b"content-type", b"text/plain")])
        if b"x-silent" not in request.headers:
            await request.write(b"hello ")
        await self.lifecycle.interrupted.wait()
        await request.write(b"interrupted")
        await request.end()


def read_config(text: str) -> Config:
    fields = msgspec.json.decode(text, type=dict[str, Any])
    fields["limits"] = Limits(**fields.get("limits", {}))
    settings: Any = {name: tuple(value) if isinstance(value, list) else value for name, value in fields.items()}
    return Config.from_settings(**settings)


def announce(address: str) -> None:
    sys.stdout.write(f"{address}\n")
    sys.stdout.flush()


def main() -> None:
    config = read_config(sys.argv[1])
    set_up_logging(config.observability.log_format, config.observability.log_level)
    try:
        serve(MinimalApp(config).app, config, announce)
    except StartupError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
