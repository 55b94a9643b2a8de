"""One request and its reply on our own server, without one."""

import asyncio

import pytest

from antiphon.transport.http.channel import CLOSE, ClientGone
from tests.transport.server.recording_transport import Carrier, turn

pytestmark = pytest.mark.anyio

LENGTH = (b"content-length", b"2")


def cancelling() -> int:
    task = asyncio.current_task()
    assert task is not None
    return task.cancelling()


async def awaited(what: object) -> bytes:
    async with asyncio.timeout(30):
        return what if isinstance(what, bytes) else await what  # type: ignore[misc]  # as a Line gives it


async def test_a_whole_reply_is_one_write() -> None:
    carrier = Carrier()
    cycle = carrier.cycle()
    assert cycle.reply(200, [LENGTH], b"{}") is None
    assert carrier.transport.writes == [b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}"]
    assert cycle.complete


@pytest.mark.parametrize("waits", [True, False])
async def test_after_a_reply_it_is_the_turn_of_who_waits_or_of_who_was_not_read(waits: bool) -> None:
    carrier = Carrier()
    carrier.read_paused = not waits
    if waits:
        carrier.waiting.append(carrier.cycle())
    carrier.cycle().reply(200, [LENGTH], b"{}")
    assert carrier.seen == ["replied"]


async def test_who_asks_for_the_head_alone_gets_no_body() -> None:
    carrier = Carrier()
    carrier.cycle("HEAD").reply(200, [LENGTH], b"{}")
    assert carrier.transport.writes == [b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n"]


async def test_a_head_that_nothing_follows_is_sent_when_the_turn_is_over() -> None:
    carrier = Carrier()
    cycle = carrier.cycle()
    cycle.begin(200, [])
    assert carrier.transport.writes == []
    await turn()
    cycle.write(b"hello")
    cycle.write(b"")  # would be the end
    cycle.end()
    assert carrier.transport.writes == [
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n",
        b"5\r\nhello\r\n",
        b"0\r\n\r\n",
    ]


async def test_a_status_without_a_body_has_no_chunks() -> None:
    carrier = Carrier()
    cycle = carrier.cycle("OPTIONS")
    cycle.begin(204, [])
    cycle.end()
    await turn()
    assert carrier.transport.writes == [b"HTTP/1.1 204 No Content\r\n\r\n"]


@pytest.mark.parametrize("headers", [[CLOSE], []])
async def test_the_last_reply_says_so_once_and_closes(headers: list[tuple[bytes, bytes]]) -> None:
    carrier = Carrier()
    cycle = carrier.cycle()
    cycle.keep_alive = bool(headers)  # one of the two wants to close
    cycle.reply(200, [LENGTH, *headers], b"{}")
    assert carrier.transport.writes == [b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}"]
    assert carrier.seen == ["replied for the last time"]


async def test_a_body_that_is_there_is_not_waited_for() -> None:
    cycle = Carrier().cycle()
    for byte in b"[1]":
        cycle.take(bytes([byte]))
    cycle.take_end()
    assert cycle.read() == b"[1]"
    assert not cycle.more


async def test_a_body_is_waited_for_piece_by_piece() -> None:
    carrier = Carrier()
    cycle = carrier.cycle()
    first = asyncio.ensure_future(awaited(cycle.read()))
    await turn()
    cycle.take(b"[1,")
    assert await awaited(first) == b"[1,"
    last = asyncio.ensure_future(awaited(cycle.read()))
    await turn()
    cycle.take_end()
    assert (await awaited(last), cycle.more) == (b"", False)
    assert carrier.transport.writes == []


async def test_who_expects_it_is_told_to_go_on_once_and_only_if_there_is_something_to_wait_for() -> None:
    carrier = Carrier()
    cycle = carrier.cycle("POST", (b"expect", b"100-Continue"))
    cycle.take(b"[")
    assert cycle.read() == b"["
    assert carrier.transport.writes == []
    for piece in (b"1", b"]"):
        reading = asyncio.ensure_future(awaited(cycle.read()))
        await turn()
        cycle.take(piece)
        assert await awaited(reading) == piece
    assert carrier.transport.writes == [b"HTTP/1.1 100 Continue\r\n\r\n"]


async def test_a_reader_who_is_slow_is_waited_for_by_everything() -> None:
    carrier = Carrier()
    carrier.pause_writing()
    cycle = carrier.cycle()
    waiting = cycle.reply(200, [LENGTH], b"{}")
    assert waiting is not None
    assert carrier.transport.writes == []
    carrier.resume_writing()
    async with asyncio.timeout(30):
        await waiting
    assert (len(carrier.transport.writes), cycle.complete) == (1, True)


async def test_a_client_that_leaves_is_noticed_by_who_reads_and_by_who_works_for_it() -> None:
    cycle = Carrier().cycle()
    reading = asyncio.ensure_future(awaited(cycle.read()))
    asyncio.get_running_loop().call_soon(cycle.leave)
    with pytest.raises(ClientGone), cycle:
        await asyncio.Event().wait()
    with pytest.raises(ClientGone):
        await reading
    with pytest.raises(ClientGone):
        cycle.read()
    assert not cancelling()


async def test_who_begins_to_work_too_late_is_told_and_who_is_done_is_not() -> None:
    cycle = Carrier().cycle()
    cycle.leave()
    with pytest.raises(ClientGone), cycle:
        await asyncio.Event().wait()
    with cycle:
        pass  # it takes no time at all
    await turn()
    assert not cancelling()


async def test_who_is_cancelled_by_others_too_is_told_of_that() -> None:
    cycle, task = Carrier().cycle(), asyncio.current_task()
    assert task is not None
    task.cancel()
    cycle.leave()
    with pytest.raises(asyncio.CancelledError), cycle:
        await asyncio.Event().wait()
    assert task.uncancel() == 0


async def test_nothing_is_said_to_who_has_left() -> None:
    carrier = Carrier()
    cycle = carrier.cycle()
    cycle.leave()
    carrier.pause_writing()  # nor waited for
    assert [cycle.begin(200, []), cycle.write(b"x"), cycle.end(), cycle.reply(200, [LENGTH], b"{}")] == [None] * 4
    cycle.close()
    assert (carrier.transport.writes, carrier.seen) == ([], [])


async def test_a_reply_that_is_not_over_is_left_open() -> None:
    carrier = Carrier()
    carrier.cycle().close()
    assert carrier.seen == ["left open"]


async def test_there_is_one_reply() -> None:
    cycle = Carrier().cycle()
    cycle.reply(200, [LENGTH], b"{}")
    with pytest.raises(RuntimeError):
        cycle.reply(200, [LENGTH], b"{}")
    with pytest.raises(RuntimeError):
        cycle.end()
