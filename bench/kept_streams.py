"""Memory of streams that continue without their clients (`--keep-streams`): their answers of 1,000 tokens wait for the
end, and all of their clients have disconnected.
"""

import socket
import tempfile
from pathlib import Path

import msgspec

from bench.cases import PATH
from bench.harness.process_meter import rss_bytes
from bench.harness.servers import Server, run_antiphon
from bench.harness.table import Row

GOAL = 60.0  # kB
_STREAMS, _TOKENS = 300, 1000
_LAST = " end"  # the last of the tokens
_SCRIPT = f'''[[reply]]
steps = [{{ say = [" word"], repeat = {_TOKENS - 1} }}, {{ say = "{_LAST}" }}, {{ silence = true }}]
'''


def measure_kept_streams() -> list[Row]:
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "script.toml"
        script.write_text(_SCRIPT)
        with run_antiphon("--fake-script", str(script)) as server:
            return [_measure(server, is_stored) for is_stored in (True, False)]


def _measure(server: Server, is_stored: bool) -> Row:
    _drop_streams(server, is_stored, 20)  # loads code and fills caches
    before = rss_bytes(server.pid)
    _drop_streams(server, is_stored, _STREAMS)
    kilobytes = (rss_bytes(server.pid) - before) / _STREAMS / 1000
    name = f"{_STREAMS} kept streams of {_TOKENS:,} tokens, {'stored' if is_stored else 'not stored'}: RSS kB/stream"
    return Row(name=name, figures=(kilobytes,), goal=GOAL)


def _drop_streams(server: Server, is_stored: bool, count: int) -> None:
    """Read streams up to their last token, and disconnect."""
    body = msgspec.json.encode({"model": "fake", "input": "hi", "stream": True, "store": is_stored})
    lines = (f"POST {PATH} HTTP/1.1", "host: 127.0.0.1", "content-type: application/json")
    head = "\r\n".join([*lines, f"content-length: {len(body)}", "", ""])
    last = f'"delta":"{_LAST}"'.encode()
    for _ in range(count):
        with socket.create_connection(("127.0.0.1", server.port), timeout=30) as connection:
            connection.sendall(head.encode() + body)
            received = b""
            while last not in received:
                received = received[-100:] + connection.recv(65536)
