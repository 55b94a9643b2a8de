"""What went on in the last responses, for whoever looks for a fault: prompts as engines got them, what these said, and
how long each turn and tool took. In memory alone, within bounds, and only if the operator wants it (--keep-traces).
"""

from collections import OrderedDict
from collections.abc import Sequence

from msgspec.json import encode
from msgspec.structs import asdict

from antiphon.agent.otel_attributes import calls
from antiphon.agent.run_tracer import Call, ToolCall, Witness
from antiphon.core.prompt import ChatPrompt, Chunk, Prompt, Sampling, TextPrompt
from antiphon.errors import NotFound
from antiphon.protocol.types.traces import Heard, ResponseTrace, Shown, ToolTrace, TurnTrace, TurnUsage

MOST_BYTES = 64 * 1024 * 1024  # of all together
_PART = 8  # of that, for one


class Traces:
    def __init__(self, most: int, most_bytes: int = MOST_BYTES) -> None:
        """`most`: responses; 0: nothing is kept."""
        self._most = most
        self._most_bytes = most_bytes
        self._kept: OrderedDict[tuple[str, str], bytes] = OrderedDict()
        self._bytes = 0

    @property
    def wanted(self) -> bool:
        return self._most > 0

    def keep(self, tenant: str, witness: Witness) -> None:
        """For Witness: it has ended. Of one that is too large the words are left out."""
        if not witness.id:
            return
        try:
            body = encode(_trace(witness, True))
        except (TypeError, ValueError):  # what cannot be shown is no fault of the response
            body = b""
        if not body or len(body) > self._most_bytes // _PART:
            body = encode(_trace(witness, False))
        self.forget(tenant, witness.id)
        self._kept[tenant, witness.id] = body
        self._bytes += len(body)
        while self._kept and (len(self._kept) > self._most or self._bytes > self._most_bytes):
            self._bytes -= len(self._kept.popitem(last=False)[1])

    def find(self, tenant: str, response_id: str) -> bytes:
        """Raises NotFound, and says what could be done about it."""
        if not self._most:
            raise NotFound("This server keeps no traces. Its operator can change that with --keep-traces N.")
        if (body := self._kept.get((tenant, response_id))) is None:
            raise NotFound(
                f"There is no trace of a response {response_id[:80]!r}: this process keeps those of the last"
                f" {self._most} that it ran."
            )
        return body

    def forget(self, tenant: str, response_id: str) -> None:
        """It was deleted."""
        if (body := self._kept.pop((tenant, response_id), None)) is not None:
            self._bytes -= len(body)


def _trace(witness: Witness, words: bool) -> ResponseTrace:
    outcome = witness.outcome
    return ResponseTrace(
        id=witness.id,
        status="" if outcome is None else outcome.status,
        error=None if outcome is None else outcome.error or None,
        began=witness.began,
        seconds=_span(witness.began, witness.ended_at),
        whole=words,
        turns=[_turn(call, words) for call in witness.calls],
        tools=[_tool(tool, words) for tool in witness.tools],
    )


def _turn(call: Call, words: bool) -> TurnTrace:
    return TurnTrace(
        engine=call.engine,
        model=call.work.model,
        prompt=_shown(call.work.prompt) if words else None,
        sampling=_given(call.work.sampling),
        output=_heard(call.chunks) if words else None,
        finish=call.finish,
        error=call.error or None,
        usage=TurnUsage(**asdict(call.counts)),
        began=call.began,
        waited=_span(call.began, call.ready_at),
        first_token=_span(call.began, call.first_at),
        seconds=_span(call.began, call.ended_at),
    )


def _tool(tool: ToolCall, words: bool) -> ToolTrace:
    return ToolTrace(
        kind=tool.kind,
        id=tool.use.id,
        name=tool.use.name,
        server=tool.use.namespace,
        arguments=tool.use.arguments if words else None,
        outcome=tool.outcome,
        began=tool.began,
        seconds=_span(tool.began, tool.ended_at),
    )


def _span(began: float, ended: float | None) -> float | None:
    return None if ended is None else round(ended - began, 6)


def _shown(prompt: Prompt) -> Shown:
    match prompt:
        case ChatPrompt():
            return Shown(kind="chat", messages=[*prompt.messages], tools=[*prompt.tools])
        case TextPrompt():
            return Shown(kind="text", text="".join([segment.text for segment in prompt.segments]))
    return Shown(kind="tokens", tokens=[*prompt.tokens])


def _heard(chunks: Sequence[Chunk]) -> Heard:
    return Heard(
        text="".join([chunk.text for chunk in chunks]),
        thought="".join([chunk.thought for chunk in chunks]),
        refusal="".join([chunk.refusal for chunk in chunks]),
        calls=calls(chunks),
        tokens=[token for chunk in chunks for token in chunk.tokens],
    )


def _given(sampling: Sampling) -> dict[str, object]:
    usual = Sampling()
    told = {name: getattr(sampling, name) for name in sampling.__struct_fields__}
    return {name: value for name, value in told.items() if value != getattr(usual, name)}
