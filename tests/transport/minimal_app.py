"""An application with little behind it, to try the edge with; also as a process of its own:

`python -m tests.transport.minimal_app '{"port": 0, "limits": {"header_seconds": 1}}'` prints its address when it
listens."""

import asyncio
import sys
from typing import Any

import msgspec

from antiphon.config import Config
from antiphon.engines.base import Model, State
from antiphon.errors import EngineFailed, ModelNotFound, StartupError
from antiphon.limits import Limits
from antiphon.observe import Metrics, set_up_logging
from antiphon.transport.endpoints.openapi import Docs
from antiphon.transport.endpoints.system import System
from antiphon.transport.http.request import Request, Route
from antiphon.transport.middleware.app import App
from antiphon.transport.middleware.auth import Guard
from antiphon.transport.process.server import serve


class Shelf:
    """Two models, and whatever reasons there are for not being ready."""

    def __init__(self) -> None:
        self.reasons: list[str] = []
        self.engines: list[State] = []

    def models(self) -> list[Model]:
        return [Model(id="small", created=1), Model(id="org/large", created=2, owned_by="org")]

    def model(self, name: str) -> Model:
        for model in self.models():
            if model.id == name:
                return model
        raise ModelNotFound(f"The model '{name}' does not exist here.", param="model")

    def ready(self) -> list[str]:
        return self.reasons

    def states(self) -> list[State]:
        return self.engines


class Life:
    """Opens at once, never (`engine` is "slow") or not at all ("broken")."""

    def __init__(self, engine: str) -> None:
        self.interrupted = asyncio.Event()
        self.seen: list[str] = []
        self._engine = engine

    async def open(self) -> None:
        self.seen.append("open")
        if self._engine == "broken":
            raise StartupError("The engine is broken.")
        if self._engine == "slow":
            sys.stderr.write("opening\n")
            await asyncio.Event().wait()

    async def close(self) -> None:
        self.seen.append("close")
        if self._engine != "llamacpp":
            sys.stderr.write("closed\n")

    def busy(self) -> bool:
        return False

    def reload(self) -> None:
        sys.stderr.write("reloaded\n")

    def rest(self) -> None:
        """Nothing is taken up here anyway."""

    def interrupt(self) -> None:
        self.seen.append("interrupt")
        self.interrupted.set()


class Edge:
    def __init__(self, config: Config) -> None:
        self.config = config
        self.shelf = Shelf()
        self.life = Life(config.specs[0].url)
        self.metrics = Metrics("1.2.3")
        self.guard = Guard(config)
        system = System(self.shelf, self.metrics, self.guard, "1.2.3")
        routes = [*self._own_routes(), *system.routes()]
        self.routes = [*routes, *Docs(routes, "1.2.3").routes()]
        self.app = App(self.routes, self.guard, self.metrics, self.life)

    def _own_routes(self) -> list[Route]:
        return [
            Route(method="POST", path="/v1/echo", endpoint=self.echo, summary="Echo", new_work=True),
            Route(method="DELETE", path="/v1/echo", endpoint=self.fail, summary="Fail"),
            Route(method="GET", path="/v1/things/{thing}/parts/{part}", endpoint=self.thing, summary="A part"),
            Route(method="GET", path="/v1/fail", endpoint=self.fail, summary="Fail"),
            Route(method="GET", path="/v1/break", endpoint=self.break_off, summary="Fail in the midst of a reply"),
            Route(method="GET", path="/v1/engine", endpoint=self.engine, summary="A typed failure"),
            Route(method="GET", path="/v1/flood", endpoint=self.flood, summary="Write without end"),
            Route(method="GET", path="/v1/wait", endpoint=self.wait, summary="Wait without a word"),
            Route(method="GET", path="/v1/hang", endpoint=self.hang, summary="Say a word, then wait for the end"),
        ]

    async def echo(self, request: Request) -> None:
        await request.reply(200, await request.read_body(self.config.limits))

    async def thing(self, request: Request) -> None:
        await request.reply(200, msgspec.json.encode(request.params))

    async def fail(self, request: Request) -> None:
        raise ZeroDivisionError("a secret of the house")

    async def break_off(self, request: Request) -> None:
        await request.begin(200, [(b"content-type", b"text/plain")])
        await request.write(b"so far")
        raise ZeroDivisionError("a secret of the house")

    async def engine(self, request: Request) -> None:
        raise EngineFailed("The engine stopped.")

    async def flood(self, request: Request) -> None:
        """Written until the client is gone, or forever for those who never read."""
        await request.begin(200, [(b"content-type", b"text/plain")])
        written = 0
        try:
            with request.line:
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
        await self.life.interrupted.wait()
        await request.write(b"interrupted")
        await request.end()


def read_config(text: str) -> Config:
    fields = msgspec.json.decode(text, type=dict[str, Any])
    fields["limits"] = Limits(**fields.get("limits", {}))
    settings: Any = {name: tuple(value) if isinstance(value, list) else value for name, value in fields.items()}
    return Config(**settings)


def announce(address: str) -> None:
    sys.stdout.write(f"{address}\n")
    sys.stdout.flush()


def main() -> None:
    config = read_config(sys.argv[1])
    set_up_logging(config.log_format, config.log_level)
    try:
        serve(Edge(config).app, config, announce)
    except StartupError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
