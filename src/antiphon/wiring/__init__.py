"""Composition root: Config → engine and store → services → application. The only package that imports all others."""

from antiphon.wiring.app import build_app, create_app
from antiphon.wiring.components import ServerLifecycle
from antiphon.wiring.serving import serve

__all__ = ["ServerLifecycle", "build_app", "create_app", "serve"]
