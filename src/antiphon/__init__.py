"""A server that gives any language model the OpenAI Responses API."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from antiphon.transport.middleware.app import App


def create_app(**settings: Any) -> "App":
    """Create the ASGI application, to be served by any ASGI server or mounted in another application.

    `settings` are those of the configuration file, by name: `create_app(engine="fake", store="memory")`.
    """
    from antiphon.wiring import create_app as create  # imported here: other users of the package must not wait for it

    return create(**settings)
