"""WorkerSlot: the parent answers the limit requests that a worker sends through a pipe."""

import os
import time
from multiprocessing import connection

from antiphon.stores.live.base import BucketRequest
from antiphon.stores.live.worker_limits import BucketExchange, LimitServer, encode
from antiphon.transport.process.supervisor import WorkerSlot


def run_worker(*requests: bytes) -> tuple[list[bytes], bool]:
    """Run a worker that sends the requests. Returns the answers, and whether the parent closed the pipe."""
    reader, writer = os.pipe()

    def work(number: int, report_pipe: connection.Connection, limits_pipe: connection.Connection) -> None:
        slot.close_limits_pipe()
        for request in requests:
            limits_pipe.send_bytes(request)
            try:
                os.write(writer, limits_pipe.recv_bytes().hex().encode() + b"\n")
            except EOFError:
                os.write(writer, b"hung up")

    slot, limit_server = WorkerSlot(1, work, list), LimitServer(lambda: 1.0)
    slot.start()
    os.close(writer)
    deadline = time.monotonic() + 30.0
    try:
        while slot.poll_exit() is None:
            assert time.monotonic() < deadline
            connection.wait(slot.wait_handles, 1.0)
            slot.read_report()
            slot.serve_limits(limit_server.handle)
    finally:
        slot.terminate()
    with os.fdopen(reader, "rb") as found:
        *answers, last = found.read().split(b"\n")
    return answers, last == b"hung up"


def test_requests_are_answered_one_after_the_other() -> None:
    request = encode(BucketExchange("acme", [BucketRequest(name="requests", size=60.0, want=2.0, most=3.0)]))
    answers, closed = run_worker(request, request)
    assert len(answers) == 2
    assert not closed


def test_an_invalid_request_closes_the_pipe_and_nothing_else() -> None:
    assert run_worker(b"nonsense") == ([], True)
