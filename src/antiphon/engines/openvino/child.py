"""Program of the child process: OpenVINO behind a server with the wire format of llama.cpp, on a Unix socket.

The pipeline of a model that generates holds the GIL while it computes a step, so it runs in the thread of the server,
between two rounds of the event loop. A client that closes its connection cancels its generation before the next step.
"""

import asyncio
import os
import socket
import sys
import warnings

from antiphon.engines.embedded.child import read_launch, set_signals, take_stdout, write_report
from antiphon.engines.openvino.launch import OpenVinoLaunch
from antiphon.engines.openvino.server import ChildApp, ModelServer, shorten_error
from antiphon.errors import StartupError
from antiphon.http_server.server import HttpServer
from antiphon.http_server.settings import ConnectionLimits, HttpServerSettings

BACKLOG = 128


def main() -> None:
    launch = read_launch(OpenVinoLaunch)
    output = take_stdout()
    warnings.simplefilter("ignore")  # deprecations of OpenVINO are not for the log of the server
    try:
        model = _load_model(launch)
        listener = _listen(launch.socket)
    except (ImportError, OSError, RuntimeError, StartupError, ValueError) as error:
        write_report(output, shorten_error(error))
        sys.exit(1)
    set_signals()
    write_report(output, "")
    asyncio.run(_serve(model, listener))


def _load_model(launch: OpenVinoLaunch) -> ModelServer:
    if launch.pooling is None:
        from antiphon.engines.openvino.loader import load_model  # imports OpenVINO

        return load_model(launch)
    from antiphon.engines.openvino.encoder import EncoderModel

    return EncoderModel(launch)


def _listen(path: str) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX)
    mask = os.umask(0o177)
    listener.bind(path)
    os.umask(mask)
    listener.listen(BACKLOG)
    return listener


async def _serve(model: ModelServer, listener: socket.socket) -> None:
    """Serve until stdin is closed. A step that fails leaves the pipeline unusable: the process exits, too."""
    asyncio.get_running_loop().add_reader(sys.stdin.fileno(), os._exit, 0)
    server = HttpServer(HttpServerSettings(ChildApp(model), ConnectionLimits(websockets=False), lifespan="off"))
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        await model.run()
    finally:
        serving.cancel()


if __name__ == "__main__":
    main()
