"""Listening sockets: unusable addresses, names with several addresses, and sockets that do not listen yet."""

import socket

import pytest

from antiphon.config import Config
from antiphon.errors import StartupError
from antiphon.transport.process.listening_sockets import bind_sockets


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"host": "203.0.113.7", "api_key": ("k",)}, "not an address of this machine"),
        ({"host": "no-such-host.invalid"}, "cannot be resolved"),
        ({"host": "a" * 300}, "cannot be resolved"),
        ({"host": "\u0000"}, "cannot be resolved"),
    ],
)
@pytest.mark.shows("H.12")
def test_an_unusable_address_is_a_startup_error(settings: dict[str, str], message: str) -> None:
    with pytest.raises(StartupError, match=message):
        bind_sockets(Config.from_settings(**settings))


def test_a_name_with_two_addresses_is_bound_to_one_port() -> None:
    sockets = bind_sockets(Config.from_settings(host="localhost", port=0))
    assert len({one.getsockname()[1] for one in sockets}) == 1
    for one in sockets:
        one.close()


def test_connections_are_refused_before_the_engines_are_open() -> None:
    [one] = bind_sockets(Config.from_settings(port=0))
    with one, pytest.raises(ConnectionRefusedError), socket.create_connection(one.getsockname(), timeout=30):
        pass
