"""`antiphon sandbox-worker`: run the containers of servers on other hosts."""

import asyncio
import signal
import ssl
from contextlib import suppress
from pathlib import Path

import click

from antiphon.cli.options import SettingsCommand, settings_by_name
from antiphon.config import Config
from antiphon.config.key_settings import load_sandbox_keys
from antiphon.errors import SandboxUnavailable, StartupError
from antiphon.observe import set_up_logging
from antiphon.sandbox.base import SandboxStatus
from antiphon.sandbox.gateway import SandboxGateway
from antiphon.sandbox.local import LocalSandbox, make_sandbox_settings

SANDBOX_WORKER = """Run code of other servers in the sandbox of this host.

Servers use it with --sandbox-url and the same key file. Those with other keys have other containers.

\b
  openssl rand -hex 24 > key
  antiphon sandbox-worker --listen 0.0.0.0:8700 --sandbox-key-file key
  antiphon serve --sandbox-url http://worker:8700 --sandbox-key-file key
"""

_SETTINGS = (
    *("sandbox_key_file", "sandbox", "sandbox_python", "sandbox_folder", "sandbox_max_containers"),
    *("log_level", "log_format", "config"),
)
_HANDSHAKE_SECONDS = 10.0


@click.command(cls=SettingsCommand, rows=settings_by_name(*_SETTINGS), help=SANDBOX_WORKER)
@click.option("--listen", metavar="HOST:PORT", default="127.0.0.1:8700", help="Address to listen on.  [127.0.0.1:8700]")
@click.option(
    "--grace", metavar="SECONDS", type=click.FloatRange(min=0), default=120.0,
    help="Time that containers are kept after the last server with their key has disconnected.  [120]",
)  # fmt: skip
@click.option(
    "--tls-certificate", metavar="PATH", type=click.Path(path_type=Path), help="Certificate chain for https.  [none]"
)
@click.option("--tls-key", metavar="PATH", type=click.Path(path_type=Path), help="Its key.  [in the same file]")
def sandbox_worker(
    config: Config, listen: str, grace: float, tls_certificate: Path | None, tls_key: Path | None
) -> None:
    set_up_logging(config.observability.log_format, config.observability.log_level)
    gateway = SandboxGateway(LocalSandbox(make_sandbox_settings(config)), load_sandbox_keys(config), grace)
    tls = None if tls_certificate is None else _load_certificate(tls_certificate, tls_key)
    asyncio.run(_serve(gateway, *_parse_address(listen), tls))


def _load_certificate(certificate: Path, key: Path | None) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(certificate, key)
    except (OSError, ssl.SSLError) as error:
        raise StartupError(f"{certificate}, which --tls-certificate names, cannot be used: {error.strerror or error}.")
    return context


def _parse_address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise StartupError(f"--listen is {text!r}; expected HOST:PORT.")
    return host.strip("[]"), int(port)


async def _serve(gateway: SandboxGateway, host: str, port: int, tls: ssl.SSLContext | None) -> None:
    """Serve until a signal arrives. Raises StartupError if this host has no sandbox, or the address is in use."""
    stopping = asyncio.Event()
    for one in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(one, stopping.set)
    seconds = None if tls is None else _HANDSHAKE_SECONDS
    try:
        status = await gateway.read_status()
        server = await asyncio.start_server(gateway.accept, host, port, ssl=tls, ssl_handshake_timeout=seconds)
        address, number = server.sockets[0].getsockname()[:2]
        _announce(status, address, number, "http" if tls is None else "https")
        await stopping.wait()
        server.close()
    except SandboxUnavailable as error:
        raise StartupError(error.message) from None
    except OSError as error:
        raise StartupError(f"{host}:{port} cannot be listened on: {error.strerror}.") from None
    finally:
        await gateway.close()


def _announce(status: SandboxStatus, host: str, port: int, scheme: str) -> None:
    packages = ", ".join(status.packages) or "no packages"
    shown = f"[{host}]" if ":" in host else host
    with suppress(OSError):
        click.echo(f"Sandbox worker at {scheme}://{shown}:{port}")
        click.echo(f"  level {status.level}, Python {status.python} with {packages}")
