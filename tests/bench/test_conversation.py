"""The conversation of `make bench` in its shortest form, and the plain clients of WebSockets."""

import msgspec
import pytest

from bench.conversation import WAYS, conversation_table, conversations
from bench.harness.load import Load
from bench.harness.turns import frame, head_size, payload_size
from bench.harness.websocket_load import SocketClient

TURNS = 3


def test_the_three_ways_say_the_same_and_send_as_much_as_they_must() -> None:
    said = conversations(rounds=1, turns=TURNS)
    assert [*said] == [*WAYS]
    turns = {way: talks[0].turns for way, talks in said.items()}
    sent = {way: sum(turn.sent for turn in taken) for way, taken in turns.items()}
    assert sent["whole"] > sent["chained"] + 40_000
    assert abs(sent["socket"] - sent["chained"]) < 1_000 * TURNS
    for taken in turns.values():
        assert taken[0].prefill > 5_000  # nothing was known
        assert all(500 < turn.prefill < 1_500 for turn in taken[1:])  # what is new, whichever way it came
        assert all(0 < turn.first_ms <= turn.whole_ms for turn in taken)
    assert all(talks[0].cpu_ms > 0 for talks in said.values())


def test_the_conversation_is_one_table() -> None:
    heads, *rows = conversation_table(rounds=1, turns=2).splitlines()
    assert "prefill" in heads
    assert [row.split("  ")[0] for row in rows] == [*WAYS.values()]


@pytest.mark.parametrize("size", [0, 125, 126, 65_535, 65_536])
def test_a_frame_of_any_size_can_be_read(size: int) -> None:
    sent = frame(b"x" * size)
    assert len(sent) == head_size(_unmasked(sent), 0) + 4 + size
    assert payload_size(_unmasked(sent), 0) == size


def _unmasked(sent: bytes) -> bytes:
    return bytes((sent[0], sent[1] & 0x7F)) + sent[2:]


@pytest.mark.anyio
@pytest.mark.parametrize("cut", [1, 2, 3, 7, 50, 129, 10_000])
async def test_the_load_counts_each_frame_once_wherever_its_bytes_are_cut(cut: int) -> None:
    client = SocketClient(Load(port=1, path="/", body='{"stream":true}', connections=1, requests=1))
    client.data_received(b"HTTP/1.1 101 Switching Protocols\r\n\r\n")
    tokens = [{"type": "response.output_text.delta", "delta": " t" * length} for length in (1, 200, 40_000)]
    events = [*tokens, {"type": "response.completed", "response": {"output": "x" * 300}}]
    bare = [_frame(msgspec.json.encode(event)) for event in events]
    answer = b"".join(bare)
    for at in range(0, len(answer), cut):
        client.data_received(answer[at : at + cut])
    assert (client.tokens, client.requests) == (3, 1)


def _frame(text: bytes) -> bytes:
    """A server's: without a mask."""
    masked = frame(text)
    bare = _unmasked(masked)
    return bare[: head_size(bare, 0)] + text
