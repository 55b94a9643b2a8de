"""A server under drill: the regular application with kill points in front of its store, its live log and its engine.

It runs as a separate process and receives a Setup as its JSON argument. Each line on its standard input arms a kill
point; `hold METHOD` delays the calls of a method until `release`; `tasks` prints the number of tasks. The end of the
input means that the drill is gone, and the server kills itself.
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
from antiphon.config.settings import fields_by_name
from antiphon.egress import EgressClient, EgressPolicy
from antiphon.engines.base import Engine
from antiphon.engines.factory import build_engine, build_pool
from antiphon.errors import StartupError
from antiphon.observe import set_up_logging
from antiphon.stores.live.base import LiveLog
from antiphon.stores.registry import make_live_log, make_store
from antiphon.stores.sql.store import Store
from antiphon.transport.process import server
from antiphon.wiring import build_app
from drills.harness.journal import Journal
from drills.harness.kill_points import CallHold, InstrumentedEngine, InstrumentedStorage, KillPoint, kill_self
from drills.harness.loop_lag import LoopLagMonitor


class Setup(Struct, frozen=True, kw_only=True):
    config: dict[str, Any]
    journal: str
    trap: str = ""
    marks: bool = True  # add a unique word to the beginning and end of each engine answer
    lag: str = ""  # file for delays of the event loop
    alone: bool = False  # no name resolves, and no address may be connected to
    pooled: bool = False  # the engine is in a pool, even if it is the only one, as in a regular server


def main() -> None:
    setup = msgspec.json.decode(sys.argv[1], type=Setup)
    config = build_config(setup.config)
    kill_point, hold, journal = KillPoint(), CallHold(), Journal(Path(setup.journal))
    if setup.trap:
        kill_point.arm(setup.trap)
    loop: Future[asyncio.AbstractEventLoop] = Future()
    threading.Thread(target=_read_commands, args=(kill_point, hold, loop), daemon=True).start()
    set_up_logging(config.observability.log_format, config.observability.log_level)
    storage = config.storage
    inner = make_store(storage.store_location, storage.store_ttl)
    store = InstrumentedStorage(inner, "store", kill_point, hold, journal)
    inner_live = make_live_log(storage.live, cast(Store, store), storage.background_timeout)
    live = InstrumentedStorage(inner_live, "live", kill_point, hold, journal)
    inner_engine = build_pool(config) if setup.pooled else build_engine(config)
    engine = InstrumentedEngine(inner_engine, kill_point, journal, setup.marks)
    egress = EgressClient(EgressPolicy(is_local=lambda address: True), _resolve_nothing) if setup.alone else None
    app = build_app(config, cast(Engine, engine), store=cast(Store, store), live=cast(LiveLog, live), egress=egress)
    try:
        server.serve(app, config, partial(_announce, setup.lag, loop))
    except StartupError as error:
        sys.exit(str(error))


def build_config(settings: dict[str, Any]) -> Config:
    """Convert JSON values of settings, by name, and of whole areas such as `shed`."""
    areas = {row.name: row.type for row in msgspec.structs.fields(Config)}
    types = areas | {name: row.type for name, (_, row) in fields_by_name().items()}
    values = {"engine": "fake", "port": 0, **settings}
    return Config.from_settings(**{name: _convert(value, types[name]) for name, value in values.items()})


def _convert(value: Any, kind: Any) -> Any:
    return msgspec.convert(value, kind, dec_hook=lambda kind, value: kind(value))


async def _resolve_nothing(host: str, port: int) -> Sequence[str]:
    raise OSError(f"{host} cannot be resolved")


def _announce(lag: str, loop: Future[asyncio.AbstractEventLoop], address: str) -> None:
    loop.set_result(asyncio.get_running_loop())
    if lag:
        LoopLagMonitor(Path(lag)).start()
    _print_line(address)


def _read_commands(kill_point: KillPoint, hold: CallHold, loop: Future[asyncio.AbstractEventLoop]) -> None:
    for line in sys.stdin:
        match line.split():
            case ["tasks"]:
                loop.result().call_soon_threadsafe(lambda: _print_line(f"tasks {len(asyncio.all_tasks())}"))
            case ["hold", method]:
                loop.result().call_soon_threadsafe(hold.set, method)
            case ["release"]:
                loop.result().call_soon_threadsafe(hold.release)
            case [point]:
                kill_point.arm(point)
    kill_self()


def _print_line(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
