"""Moderation of one run: its input is judged before the model reads it, and its output when a model call has ended.

    policy    the input is flagged     the output is flagged
    score     reported                 reported: the client has it already
    block     the model is not called  nothing of this model call is emitted, and none of its tool calls is run

With `block` the output of a model call is held back until it is judged. A blocked run ends incomplete, with the reason
content_filter. If the moderation model fails, the run fails where the policy blocks; otherwise the failure is reported
in place of a result.
"""

from collections.abc import Awaitable, Callable, Iterable
from typing import Final, Generic, TypeVar

from msgspec import Struct

from antiphon.core.deltas import CallDelta, Delta, ReasoningDelta, Refusal, Summary, Text
from antiphon.core.prompt import Chunk
from antiphon.errors import AntiphonError
from antiphon.protocol.bodies.moderations import merge_judgements
from antiphon.protocol.types.chat.response import ChatModeration, ModerationResults
from antiphon.protocol.types.response import ModerationFailure, ModerationResult, ModerationVerdict, ResponseModeration

E = TypeVar("E")

NOT_JUDGED: Final = ModerationFailure(code="not_moderated", message="It was not judged: the response ended before.")
_TEXT_DELTAS: Final = (Text, Refusal, ReasoningDelta, Summary, CallDelta)


class ContentBlocked(AntiphonError):
    """Not a failure: the run ends because its input or output was flagged."""


class ModerationPlan(Struct, frozen=True, kw_only=True):
    """The moderation of a run. Both functions raise the errors of the moderation model, within a deadline."""

    judge_input: Callable[[], Awaitable[ModerationResult]]
    judge_output: Callable[[str], Awaitable[ModerationResult]]
    blocks_input: bool
    blocks_output: bool


class RunModeration:
    """The results of one run."""

    def __init__(self, plan: ModerationPlan) -> None:
        self.plan = plan
        self._input: ModerationVerdict = NOT_JUDGED
        self._outputs: dict[int, ModerationVerdict] = {}  # by turn or choice

    async def check_input(self) -> None:
        """Judge the input. Raises ContentBlocked."""
        self._input = await _judge(self.plan.judge_input(), self.plan.blocks_input)
        _check(self._input, self.plan.blocks_input)

    async def check_output(self, text: str, number: int | None = None) -> None:
        """Judge the output of a turn, or of the choice with this number. Raises ContentBlocked."""
        verdict = await _judge(self.plan.judge_output(text), self.plan.blocks_output)
        self._outputs[len(self._outputs) if number is None else number] = verdict
        _check(verdict, self.plan.blocks_output)

    def to_response(self) -> ResponseModeration:
        results, failure = self._split_outputs()
        return ResponseModeration(input=self._input, output=failure or merge_judgements(results[0].model, [*results]))

    def to_chat(self) -> ChatModeration:
        results, failure = self._split_outputs()
        judged = self._input
        return ChatModeration(
            input=judged if isinstance(judged, ModerationFailure) else _list_results([judged]),
            output=failure or _list_results(results),
        )

    def _split_outputs(self) -> tuple[list[ModerationResult], ModerationFailure | None]:
        """Return the results in order, or why there are none."""
        verdicts = [verdict for _, verdict in sorted(self._outputs.items())] or [NOT_JUDGED]
        failure = next((one for one in verdicts if isinstance(one, ModerationFailure)), None)
        return [one for one in verdicts if isinstance(one, ModerationResult)], failure


class ModeratedOutput(Generic[E]):
    """The output of one model call: renders it, or holds it back until it is judged if the policy blocks.

    `note` receives the chunks that have more than output (`ModelCallRun`); they are held back likewise.
    """

    def __init__(
        self,
        moderation: RunModeration,
        render: Callable[[Iterable[Delta]], list[E]],
        note: Callable[[Chunk], None] | None = None,
        number: int | None = None,
    ) -> None:
        self._moderation = moderation
        self._render = render
        self._note = note
        self._number = number
        self._texts: list[str] = []
        self._held: list[Chunk | list[Delta]] | None = [] if moderation.plan.blocks_output else None

    def feed(self, deltas: Iterable[Delta]) -> list[E]:
        batch = [*deltas]
        self._texts += [delta.text for delta in batch if isinstance(delta, _TEXT_DELTAS)]
        if self._held is None:
            return self._render(batch)
        self._held.append(batch)
        return []

    def note(self, chunk: Chunk) -> None:
        if self._held is not None:
            self._held.append(chunk)
        elif self._note is not None:
            self._note(chunk)

    async def finish(self) -> list[E]:
        """Judge the complete output and return what was held back. Raises ContentBlocked."""
        await self._moderation.check_output("".join(self._texts), self._number)
        out: list[E] = []
        held, self._held = self._held or [], None
        for entry in held:
            if isinstance(entry, Chunk):
                self.note(entry)
            else:
                out += self._render(entry)
        return out


async def _judge(judging: Awaitable[ModerationResult], blocks: bool) -> ModerationVerdict:
    try:
        return await judging
    except AntiphonError as error:
        if blocks:
            raise
        return ModerationFailure(code=error.code or error.type, message=error.message)


def _check(verdict: ModerationVerdict, blocks: bool) -> None:
    if blocks and isinstance(verdict, ModerationResult) and verdict.flagged:
        raise ContentBlocked("The content was flagged by the moderation model.")


def _list_results(results: list[ModerationResult]) -> ModerationResults:
    return ModerationResults(model=results[0].model, results=results)
