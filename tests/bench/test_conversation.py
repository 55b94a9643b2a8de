"""The conversation of `make bench` in its shortest form, and the frames of its WebSocket load client."""

import msgspec
import pytest

from bench.conversation import MODES, measure_conversations, render_conversation_table
from bench.harness.load import Load
from bench.harness.traffic import Traffic
from bench.harness.websocket_frames import frame, head_size, payload_size
from bench.harness.websocket_load import SocketClient

TURNS = 3


def test_the_three_modes_prefill_the_same_and_send_the_expected_bytes() -> None:
    results = measure_conversations(rounds=1, turns=TURNS)
    assert [*results] == [*MODES]
    turns = {mode: runs[0].turns for mode, runs in results.items()}
    sent = {mode: sum(turn.sent for turn in taken) for mode, taken in turns.items()}
    assert sent["whole"] > sent["chained"] + 40_000
    assert abs(sent["socket"] - sent["chained"]) < 1_000 * TURNS
    for taken in turns.values():
        assert taken[0].prefill > 5_000  # nothing was cached
        assert all(500 < turn.prefill < 1_500 for turn in taken[1:])  # only the new input, in every mode
        assert all(0 < turn.first_ms <= turn.whole_ms for turn in taken)
    assert all(runs[0].cpu_ms > 0 for runs in results.values())


def test_the_conversation_is_one_table() -> None:
    heads, *rows = render_conversation_table(rounds=1, turns=2).splitlines()
    assert "prefill" in heads
    assert [row.split("  ")[0] for row in rows] == [*MODES.values()]


@pytest.mark.parametrize("size", [0, 125, 126, 65_535, 65_536])
def test_a_frame_of_any_size_can_be_read(size: int) -> None:
    sent = frame(b"x" * size)
    assert len(sent) == head_size(_clear_mask_bit(sent), 0) + 4 + size
    assert payload_size(_clear_mask_bit(sent), 0) == size


def _clear_mask_bit(sent: bytes) -> bytes:
    return bytes((sent[0], sent[1] & 0x7F)) + sent[2:]


@pytest.mark.anyio
@pytest.mark.parametrize("cut", [1, 2, 3, 7, 50, 129, 10_000])
async def test_the_load_counts_each_frame_once_wherever_its_bytes_are_cut(cut: int) -> None:
    traffic = Traffic(kind="identical", model="fake", stream=True)
    client = SocketClient(Load(port=1, path="/", traffic=traffic, connections=1, requests=1), [b"{}"])
    client.data_received(b"HTTP/1.1 101 Switching Protocols\r\n\r\n")
    tokens = [{"type": "response.output_text.delta", "delta": " t" * length} for length in (1, 200, 40_000)]
    events = [*tokens, {"type": "response.completed", "response": {"output": "x" * 300}}]
    frames = [_encode_server_frame(msgspec.json.encode(event)) for event in events]
    answer = b"".join(frames)
    for at in range(0, len(answer), cut):
        client.data_received(answer[at : at + cut])
    assert (client.tokens, client.answers) == (3, 1)


def _encode_server_frame(text: bytes) -> bytes:
    """Encode a frame as a server does: unmasked."""
    masked = frame(text)
    unmasked = _clear_mask_bit(masked)
    return unmasked[: head_size(unmasked, 0)] + text
