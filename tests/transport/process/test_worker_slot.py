"""What a worker asks its parent, at the parent's end."""

import os
import time
from multiprocessing import connection

from antiphon.stores.live.base import Ask
from antiphon.stores.live.worker_limits import Drawer, Exchange, encode
from antiphon.transport.process.supervisor import Seat


def asks(*questions: bytes) -> tuple[list[bytes], bool]:
    """The answers to what a worker sent before it left, and whether it was hung up on."""
    back, told = os.pipe()

    def live(number: int, mouth: connection.Connection, till: connection.Connection) -> None:
        seat.leave()
        for question in questions:
            till.send_bytes(question)
            try:
                os.write(told, till.recv_bytes().hex().encode() + b"\n")
            except EOFError:
                os.write(told, b"hung up")

    seat, drawer = Seat(1, live, list), Drawer(lambda: 1.0)
    seat.start()
    os.close(told)
    deadline = time.monotonic() + 30.0
    try:
        while seat.ended() is None:
            assert time.monotonic() < deadline
            connection.wait(seat.ears, 1.0)
            seat.news()
            seat.serve(drawer.answer)
    finally:
        seat.end()
    with os.fdopen(back, "rb") as found:
        *answers, last = found.read().split(b"\n")
    return answers, last == b"hung up"


def test_questions_are_answered_one_after_the_other() -> None:
    question = encode(Exchange("acme", [Ask(name="requests", size=60.0, want=2.0, most=3.0)]))
    answers, hung_up = asks(question, question)
    assert len(answers) == 2
    assert not hung_up


def test_one_that_makes_no_sense_ends_the_talk_and_nothing_else() -> None:
    assert asks(b"nonsense") == ([], True)
