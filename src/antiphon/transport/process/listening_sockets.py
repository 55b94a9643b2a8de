"""The sockets that the server listens on: resolves the host, binds or reserves the port, and explains errors."""

import errno
import socket
from typing import Any

from antiphon.config import Config
from antiphon.errors import StartupError

_NOTSENT_LOWAT_BYTES = 128 * 1024  # unsent bytes that the kernel buffers per client; by default it takes megabytes

Address = tuple[Any, ...]  # as in the socket module: host and port, and two more values for IPv6


def reserve_port(config: Config) -> list[socket.socket]:
    """Bind sockets that never listen, to reserve the port for the worker processes.

    The first attempt is exclusive: SO_REUSEPORT alone would share the port with any other server of this user.
    """
    exclusive = bind_sockets(config)
    port = exclusive[0].getsockname()[1]
    for one in exclusive:
        one.close()
    return bind_sockets(config, port)


def bind_sockets(config: Config, shared_port: int | None = None) -> list[socket.socket]:
    """Bind sockets that do not listen yet: a port in use is reported before a model is loaded, and no client has to
    wait.

    `shared_port`: a port that other processes of ours bind, too; the system spreads connections over all that listen.
    """
    addresses = _resolve(config.server.host, config.server.port if shared_port is None else shared_port)
    sockets: list[socket.socket] = []
    unavailable: OSError | None = None
    for family, (address, port, *scope) in addresses:
        if sockets and not port:
            port = sockets[0].getsockname()[1]
        try:
            sockets.append(_bind(family, (address, port, *scope), shared_port is not None))
        except OSError as error:
            unavailable = error
            if error.errno not in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
                raise make_listen_error(error, config.server.host, port)
    if unavailable and not sockets:  # a host name may have IPv4 and IPv6 addresses, and the machine only one of the two
        raise make_listen_error(unavailable, config.server.host, config.server.port)
    return sockets


def _resolve(host: str, port: int) -> list[tuple[socket.AddressFamily, Address]]:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (socket.gaierror, UnicodeError):
        raise StartupError(f"The host {host} cannot be resolved. Choose another with --host.")
    return [(family, address) for family, _, _, _, address in found]


def _bind(family: socket.AddressFamily, address: Address, shared: bool) -> socket.socket:
    one = socket.socket(family, socket.SOCK_STREAM)
    try:
        # on Windows SO_REUSEADDR would share the port with any other server
        one.setsockopt(socket.SOL_SOCKET, getattr(socket, "SO_EXCLUSIVEADDRUSE", socket.SO_REUSEADDR), 1)
        if hasattr(socket, "TCP_NOTSENT_LOWAT"):  # accepted connections inherit it
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, _NOTSENT_LOWAT_BYTES)
        if shared:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if family == socket.AF_INET6:
            one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        one.bind(address)
    except OSError:
        one.close()
        raise
    return one


def make_listen_error(error: OSError, host: str, port: int) -> StartupError:
    """Make the error for an address that cannot be bound or listened on, with the setting that helps."""
    match error.errno:
        case errno.EADDRINUSE:
            return StartupError(f"Port {port} on {host} is in use. Choose another with --port; 0 takes a free one.")
        case errno.EACCES:
            return StartupError(f"Port {port} may not be used by this user. Choose one above 1023 with --port.")
        case errno.EADDRNOTAVAIL:
            return StartupError(f"{host} is not an address of this machine. Choose another with --host.")
        case _:
            return StartupError(f"Cannot listen on {host}, port {port}: {error.strerror}.")


def format_address(one: socket.socket) -> str:
    """Return the URL of a socket."""
    host, port = one.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
