"""Resolves the tool names that a model calls to the declared tools.

A call of a tool that nobody serves leaves no item, since a client could neither run nor recognise it. It is collected
in `unserved`, so that a retry can answer it with an error. Calls after the first are dropped where parallel calls are
not allowed. All other deltas pass unchanged.

Calls that the server runs are gathered (`server_calls`) from the deltas that pass the output gate. Of these only code
and the arguments of MCP calls are streamed, and not of calls that the client has to approve first. Calls of the
client's own tools (a shell, a patch, a computer) are gathered too and emitted as one item when they are complete.
"""

from collections.abc import Iterable, Mapping

from msgspec import Struct
from msgspec.structs import replace

from antiphon.core.deltas import (
    CallDelta,
    CallDone,
    CallKind,
    CallStarted,
    Delta,
    ItemAdded,
    ReasoningDelta,
    Refusal,
    Text,
)
from antiphon.parsers.partial_json import StringPropertyReader
from antiphon.render.tools.client_calls import build_client_item, build_truncated_item, normalise_shell_arguments
from antiphon.render.tools.client_tools import CLIENT_KINDS, CONTAINER_EXEC, HOSTED_SHELL
from antiphon.render.tools.offered_tools import OfferedTool
from antiphon.tools.base import ModelToolCall

_CALLS = frozenset({CallStarted, CallDelta, CallDone})
_CLIENT_RUN_KINDS = frozenset({"function", "custom"}) | CLIENT_KINDS
_KINDS: dict[str, CallKind] = {"custom": "custom", "mcp": "mcp", "code_interpreter": "code_interpreter"}
_STREAMED_KINDS = frozenset({"mcp", "code_interpreter"})  # of calls that the server runs
# Namespaces of gpt-oss with one tool, which is called by any name in it.
_IMAGES = "image_generation.generate"
_NAMESPACES = {"container": CONTAINER_EXEC, "image_generation": _IMAGES, "image_gen": _IMAGES, "images": _IMAGES}
_TEXT_ARGUMENTS = {"custom": "input", "code_interpreter": "code"}  # the only argument, which is passed on as text


class ServerToolCall(Struct, eq=False):
    """A gathered call of a tool that the server runs, or of one of the client's own tools."""

    key: int
    offer: OfferedTool
    is_complete: bool = False
    pieces: list[str] = []

    @property
    def arguments(self) -> str:
        return "".join(self.pieces)

    def to_model_call(self, call_id: str = "") -> ModelToolCall:
        offer, arguments = self.offer, self.arguments
        if offer.kind == HOSTED_SHELL:
            arguments = normalise_shell_arguments(arguments)
        return ModelToolCall(key=self.key, id=call_id, name=offer.name, namespace=offer.namespace, arguments=arguments)


class UnservedCall(Struct):
    """A call of a tool that was not offered."""

    name: str  # as the model wrote it
    arguments: str = ""


class ToolCallResolver(Struct, eq=False):
    _offers: Mapping[str, OfferedTool]
    _parallel: bool = True
    first_key: int = 0  # first key to use; lower ones belong to earlier turns
    client_call_count: int = 0  # calls that the client has to run
    unserved: dict[int, UnservedCall] = {}  # by key
    has_reasoning: bool = False
    has_answer: bool = False  # the last output besides reasoning is text or a call that somebody serves
    # calls that pass; the input of a custom call and code are unwrapped from their JSON
    _inputs: dict[int, StringPropertyReader | None] = {}
    _gathered_offers: dict[int, OfferedTool] = {}  # calls that are gathered, by key
    _gathered_calls: dict[int, ServerToolCall] = {}

    def copy_for_retry(self) -> "ToolCallResolver":
        """Return a resolver for another attempt. Keys that were already emitted are not used again."""
        return ToolCallResolver(self._offers, self._parallel, first_key=self.next_key)

    @property
    def is_empty(self) -> bool:
        """Whether no tool is declared."""
        return not self._offers

    @property
    def lacks_answer(self) -> bool:
        """Whether the output has only reasoning, or ends with an unserved call. No output at all is an empty answer."""
        return not self.has_answer and (self.has_reasoning or bool(self.unserved))

    @property
    def server_calls(self) -> list[ServerToolCall]:
        """The complete calls that the server has to run. Calls that were cut are not run."""
        return [
            call for call in self._gathered_calls.values() if call.is_complete and call.offer.kind not in CLIENT_KINDS
        ]

    @property
    def next_key(self) -> int:
        return max(list(self._inputs), default=self.first_key - 1) + 1

    def resolve(self, deltas: list[Delta]) -> list[Delta]:
        """Resolve the calls in these deltas. Without calls the same list is returned."""
        for delta in deltas:
            if type(delta) in _CALLS:
                return self._resolve_calls(deltas)
        for delta in deltas:
            self.note_output(delta)
        return deltas

    def note_output(self, delta: Delta) -> None:
        """Note that the model wrote reasoning or an answer; blank text is no answer."""
        if type(delta) is ReasoningDelta:
            self.has_reasoning = True
        elif type(delta) is Refusal or (type(delta) is Text and not delta.text.isspace()):
            self.has_answer = True

    def gather(self, deltas: list[Delta]) -> list[Delta]:
        """Gather the calls of these deltas after validation and return the deltas to emit."""
        if not self._gathered_offers:
            return deltas
        return [visible for delta in deltas for visible in self._gather_delta(delta)]

    def take_cut_calls(self) -> list[Delta]:
        """Return the items of the client's own tools that a cut model had started to call. They are not to be run."""
        incomplete = [
            call for call in self._gathered_calls.values() if call.offer.kind in CLIENT_KINDS and not call.is_complete
        ]
        return [
            ItemAdded(item)
            for call in incomplete
            if (item := build_truncated_item(call.offer.kind, call.arguments)) is not None
        ]

    def _gather_delta(self, delta: Delta) -> tuple[Delta, ...]:
        if type(delta) not in _CALLS or delta.key not in self._gathered_offers:  # type: ignore[union-attr]  # a call
            return (delta,)
        call = self._get_call(delta.key)  # type: ignore[union-attr]  # as above
        completes = type(delta) is CallDone and not call.is_complete
        if type(delta) is CallDelta:
            call.pieces.append(delta.text)
        call.is_complete = call.is_complete or completes
        if completes and call.offer.kind in CLIENT_KINDS:
            return (ItemAdded(build_client_item(call.offer.kind, call.arguments, call.offer.parameters)),)
        # the arguments of other calls are not emitted piece by piece
        return (delta,) if call.offer.kind in _STREAMED_KINDS and not call.offer.approval else ()

    def _get_call(self, key: int) -> ServerToolCall:
        if key not in self._gathered_calls:
            self._gathered_calls[key] = ServerToolCall(key, self._gathered_offers[key])
        return self._gathered_calls[key]

    def _resolve_calls(self, deltas: Iterable[Delta]) -> list[Delta]:
        out: list[Delta] = []
        for delta in deltas:
            match delta:
                case CallStarted():
                    self._start(self.first_key + delta.key, delta.name, out)
                case CallDelta():
                    self._append(self.first_key + delta.key, delta.text, out)
                case CallDone():
                    self._end(self.first_key + delta.key, out)
                case _:
                    self.note_output(delta)
                    out.append(delta)
        return out

    def _start(self, key: int, name: str, out: list[Delta]) -> None:
        offer = self._offers.get(name) or self._match_spelling(name)
        if offer is None:
            self.unserved[key] = UnservedCall(name)
            self.has_answer = bool(self._inputs)
            return
        if self._inputs and not self._parallel:
            return
        self.has_answer = True
        argument = _TEXT_ARGUMENTS.get(offer.kind)
        # gpt-oss addresses a tool without functions, such as python, by its recipient and writes no JSON
        self._inputs[key] = None if argument is None else StringPropertyReader(argument, name == offer.recipient)
        if offer.kind in _CLIENT_RUN_KINDS:
            self.client_call_count += 1
        if offer.kind not in ("function", "custom"):
            is_edit = offer.recipient == _IMAGES and name.partition(".")[2].startswith("edit")
            self._gathered_offers[key] = replace(offer, name=f"{offer.name}.edit") if is_edit else offer
        out.append(CallStarted(key, offer.name, _KINDS.get(offer.kind, "function"), offer.namespace))

    def _match_spelling(self, name: str) -> OfferedTool | None:
        """Find the tool by other spellings.

        Models write `exec`, `functions.exec` or `functions/exec` for `functions__exec`, and `get_sum` for `get-sum`.
        """
        if not (matches := [offer for offer in self._offers.values() if name in _spellings(offer)]):
            folded = _fold_name(name)
            matches = [
                offer
                for plain, offer in self._offers.items()
                if folded == _fold_name(plain) or folded in map(_fold_name, _spellings(offer))
            ]
        return matches[0] if len(matches) == 1 else self._match_namespace(name)

    def _match_namespace(self, name: str) -> OfferedTool | None:
        """Resolve calls in a namespace of gpt-oss that has one tool, under any name, to the first declared one."""
        recipient = _NAMESPACES.get(name.partition(".")[0])
        return next((offer for offer in self._offers.values() if recipient and offer.recipient == recipient), None)

    def _append(self, key: int, text: str, out: list[Delta]) -> None:
        if (unserved := self.unserved.get(key)) is not None:
            unserved.arguments += text
        if key not in self._inputs:
            return
        if (unwrap := self._inputs[key]) is None:
            out.append(CallDelta(key, text))
        elif plain := unwrap.feed(text):
            out.append(CallDelta(key, plain))

    def _end(self, key: int, out: list[Delta]) -> None:
        if key not in self._inputs:
            return
        unwrap = self._inputs[key]
        if unwrap is not None and (text := unwrap.finish()):
            out.append(CallDelta(key, text))
        out.append(CallDone(key))


def _fold_name(name: str) -> str:
    return name.replace("-", "_").casefold()


def _spellings(offer: OfferedTool) -> tuple[str, ...]:
    space = offer.namespace or "functions"
    if offer.recipient and offer.recipient != CONTAINER_EXEC:
        return offer.name, offer.recipient
    return offer.name, f"{space}.{offer.name}", f"{space}/{offer.name}", f"{space}:{offer.name}"
