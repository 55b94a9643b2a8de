"""A server under drill: the product's own application, with traps before its store, its live log and its engine.

A process of its own, told what to be by one JSON argument (a Setup). Each line on its standard input arms a trap; when
that ends, whoever drills is gone, and so is the server.
"""

import sys
import threading
from pathlib import Path
from typing import Any, cast

import msgspec
from msgspec import Struct

from antiphon.config import Config
from antiphon.engines.base import Engine
from antiphon.observe import set_up_logging
from antiphon.stores.base import Store
from antiphon.stores.live.base import LiveLog
from antiphon.transport import server
from antiphon.wiring import build_app, build_engine, build_live, build_store
from drills.journal import Journal
from drills.traps import Trap, Trapped, TrappedEngine, die


class Setup(Struct, frozen=True, kw_only=True):
    config: dict[str, Any]
    journal: str
    trap: str = ""
    marks: bool = True  # each answer of the engine


def main() -> None:
    setup = msgspec.json.decode(sys.argv[1], type=Setup)
    config = configured(setup.config)
    trap, journal = Trap(), Journal(Path(setup.journal))
    if setup.trap:
        trap.arm(setup.trap)
    threading.Thread(target=_listen, args=(trap,), daemon=True).start()
    set_up_logging(config.log_format, config.log_level)
    store = Trapped(build_store(config), "store", trap, journal)
    live = Trapped(build_live(config, cast(Store, store)), "live", trap, journal)
    engine = TrappedEngine(build_engine(config), trap, journal, setup.marks)
    app = build_app(config, cast(Engine, engine), store=cast(Store, store), live=cast(LiveLog, live))
    server.serve(app, config, _announce)


def configured(given: dict[str, Any]) -> Config:
    return msgspec.convert({"engine": "fake", "port": 0, **given}, Config, dec_hook=lambda kind, value: kind(value))


def _announce(address: str) -> None:
    sys.stdout.write(f"{address}\n")
    sys.stdout.flush()


def _listen(trap: Trap) -> None:
    for line in sys.stdin:
        trap.arm(line.strip())
    die()


if __name__ == "__main__":
    main()
