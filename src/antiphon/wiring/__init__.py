"""The only place that knows everyone: Config → engine, store → service → app."""

from antiphon.engines.factory import build_engine
from antiphon.wiring.app import build_app
from antiphon.wiring.components import build_live, build_store
from antiphon.wiring.lifecycle import Lifecycle
from antiphon.wiring.serving import serve

__all__ = ["Lifecycle", "build_app", "build_engine", "build_live", "build_store", "serve"]
