"""A server under drill: the product's own application, with traps before its store, its live log and its engine.

A process of its own, told what to be by one JSON argument (a Setup). Each line on its standard input arms a trap; when
that ends, whoever drills is gone, and so is the server. The line `tasks` asks how many there are.
"""

import asyncio
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any, cast

import msgspec
from msgspec import Struct

from antiphon.config import Config
from antiphon.egress import Egress, Policy
from antiphon.engines.base import Engine
from antiphon.errors import StartupError
from antiphon.observe import set_up_logging
from antiphon.stores.base import Store
from antiphon.stores.live.base import LiveLog
from antiphon.transport.process import server
from antiphon.wiring import build_app, build_engine, build_live, build_store
from drills.harness.journal import Journal
from drills.harness.kill_points import Trap, Trapped, TrappedEngine, die
from drills.harness.loop_lag import Watch


class Setup(Struct, frozen=True, kw_only=True):
    config: dict[str, Any]
    journal: str
    trap: str = ""
    marks: bool = True  # each answer of the engine
    lag: str = ""  # file in which it is written down how late the event loop is
    alone: bool = False  # no name leads anywhere, and no address may be connected to


def main() -> None:
    setup = msgspec.json.decode(sys.argv[1], type=Setup)
    config = configured(setup.config)
    trap, journal = Trap(), Journal(Path(setup.journal))
    if setup.trap:
        trap.arm(setup.trap)
    loop: Future[asyncio.AbstractEventLoop] = Future()
    threading.Thread(target=_listen, args=(trap, loop), daemon=True).start()
    set_up_logging(config.log_format, config.log_level)
    store = Trapped(build_store(config), "store", trap, journal)
    live = Trapped(build_live(config, cast(Store, store)), "live", trap, journal)
    engine = TrappedEngine(build_engine(config), trap, journal, setup.marks)
    egress = Egress(Policy(own=lambda address: True), _nowhere) if setup.alone else None
    app = build_app(config, cast(Engine, engine), store=cast(Store, store), live=cast(LiveLog, live), egress=egress)
    try:
        server.serve(app, config, partial(_announce, setup.lag, loop))
    except StartupError as error:
        sys.exit(str(error))


def configured(given: dict[str, Any]) -> Config:
    return msgspec.convert({"engine": "fake", "port": 0, **given}, Config, dec_hook=lambda kind, value: kind(value))


async def _nowhere(host: str, port: int) -> Sequence[str]:
    raise OSError(f"{host} is not known here")


def _announce(lag: str, loop: Future[asyncio.AbstractEventLoop], address: str) -> None:
    loop.set_result(asyncio.get_running_loop())
    if lag:
        Watch(Path(lag)).begin()
    _say(address)


def _listen(trap: Trap, loop: Future[asyncio.AbstractEventLoop]) -> None:
    for line in sys.stdin:
        if line == "tasks\n":
            loop.result().call_soon_threadsafe(lambda: _say(f"tasks {len(asyncio.all_tasks())}"))
        else:
            trap.arm(line.strip())
    die()


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
