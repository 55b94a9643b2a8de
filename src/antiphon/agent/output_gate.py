"""One try of a model: fed what it said, gives what may be told of it now; the rest when it is known to be right.

Told at once is whatever no rule is about: thoughts, text that nothing is asked of, calls of tools that are not strict,
and what the engine itself holds to the rules. Held back is
- text, until there is a call, where one is demanded;
- a call of a strict tool and all that follows it;
- an answer that must have a form, where the engine does not see to that;
- everything in a second try, of which only that is told that was not told before: nothing told is taken back.

A form is not waited for in vain: an answer that goes on with nothing but white space is ended, as if it had been cut.

    feed* ─▶ judge (may take a while: in a thread) ─▶ release, unless there is a `misfit`
"""

from collections.abc import Iterable, Sequence

from msgspec import Struct, field

from antiphon.agent.output_rules import LONGEST_SAID, Key, Misfit, Reason, Rules, ToolRule
from antiphon.core.deltas import (
    Break,
    CallDelta,
    CallDone,
    CallStarted,
    Delta,
    Refusal,
    Summary,
    Text,
    Thought,
)
from antiphon.core.prompt import Chunk
from antiphon.parsers.base import Enough

MOST_BLANK = 1000  # characters of white space in a row that are part of an answer with a form


class Told(Struct):
    """To the client, over all tries."""

    text: bool = False
    thoughts: bool = False
    calls: set[tuple[Key, str]] = field(default_factory=set)


class _Call(Struct):
    started: CallStarted
    rule: ToolRule | None
    pieces: list[str] = field(default_factory=list)
    done: bool = False
    fitted: str | None = None  # what it comes to, if it is not what was said

    @property
    def key(self) -> Key:
        return self.started.namespace, self.started.name

    @property
    def text(self) -> str:
        return "".join(self.pieces) if self.fitted is None else self.fitted

    @property
    def held(self) -> bool:
        return self.rule is not None and self.rule.held


class Sieve:
    def __init__(self, rules: Rules, told: Told, again: bool = False) -> None:
        self._rules = rules
        self._told = told
        self._again = again
        self._must = rules.must is not None or (again and told.text)
        self._waits = rules.must is not None  # for a call, before which no text is told
        self._held: list[Delta] | None = [] if again else None  # None: nothing is held back
        self._calls: list[_Call] = []
        self._open: dict[int, _Call | None] = {}  # None: one that is not wanted
        self._said: list[Sequence[Text]] = []
        self._answers: list[list[str]] = [[]]  # of each message that must have the form
        self._counts = True  # the message that is open must have it
        self._blank = 0
        self._refused = False
        self.mended: list[Reason] = []
        self.misfit: Misfit | None = None

    def passes(self, texts: Sequence[Text]) -> bool:
        """On the token path of whoever insists: text that is told as it came need not be fed."""
        if self._held is not None or self._waits:
            return False
        if (form := self._rules.form) is not None:
            if form.held or self._blank > MOST_BLANK:
                return False
            for delta in texts:
                self._watch(delta.text)
        if texts:
            self._said.append(texts)
            self._told.text = True
        return True

    def feed(self, deltas: Iterable[Delta]) -> list[Delta]:
        out: list[Delta] = []
        lost = self._blank > MOST_BLANK  # before these: an answer that came in one piece has ended by itself
        for delta in deltas:
            match delta:
                case Text():
                    if lost:
                        raise Enough(Chunk(finish="length"))
                    self._say(delta)
                    self._pass(delta, out)
                case CallStarted():
                    self._start(delta, out)
                case CallDelta() | CallDone():
                    self._go_on(delta, out)
                case _:
                    self._notice(delta)
                    self._pass(delta, out)
        return out

    def judge(self, cut: bool) -> None:
        """`cut`: it had more to say, and only what is whole is looked at."""
        for call in self._calls:
            if call.done and call.rule is not None and self.misfit is None:
                self._judge_call(call, call.rule)
        if self.misfit is not None or cut or self._refused:
            return
        if self._must and not self._calls:
            self.misfit = self._miss("no_call", self._no_call())
        elif self._rules.form is not None and not self._calls:
            self._judge_form()

    def release(self) -> list[Delta]:
        """What was held back and may be told now."""
        held, self._held = self._held or [], None
        out: list[Delta] = []
        if self.misfit is None:
            for delta in self._unheld(held):
                self._pass(delta, out)
        return out

    def _say(self, delta: Text) -> None:
        self._said.append((delta,))
        if self._rules.form is not None:
            self._watch(delta.text)
            if self._rules.form.held:
                self._hold()
        if self._waits:
            self._hold()

    def _watch(self, text: str) -> None:
        if self._counts:
            self._answers[-1].append(text)
        if body := text.rstrip():
            self._blank = len(text) - len(body)
        else:
            self._blank += len(text)

    def _notice(self, delta: Delta) -> None:
        if isinstance(delta, Refusal):
            self._refused = True
        elif isinstance(delta, Break):
            self._counts = delta.phase != "commentary"
            if self._answers[-1]:
                self._answers.append([])

    def _start(self, delta: CallStarted, out: list[Delta]) -> None:
        key, said = (delta.namespace, delta.name), delta.key
        if self._rules.must is not None and key not in self._rules.must:
            self._open[said] = None
            return
        self._open[said] = call = _Call(delta, self._rules.tools.get(key))
        self._calls.append(call)
        if call.held:
            self._hold()
        if self._waits:
            self._waits = False
            self._let_go(out)
        self._pass(delta, out)

    def _let_go(self, out: list[Delta]) -> None:
        """The call that all waited for is there; if it can be told, so can they."""
        form = self._rules.form
        if self._held and not (self._again or self._calls[0].held or (form is not None and form.held)):
            held, self._held = self._held, None
            for delta in held:
                self._pass(delta, out)

    def _go_on(self, delta: CallDelta | CallDone, out: list[Delta]) -> None:
        if (call := self._open.get(delta.key)) is None:
            return
        if isinstance(delta, CallDelta):
            call.pieces.append(delta.text)
        else:
            call.done = True
        if not call.held:
            self._pass(delta, out)
            if call.done and self._held is None:
                self._told.calls.add((call.key, call.text))

    def _hold(self) -> None:
        if self._held is None:
            self._held = []

    def _pass(self, delta: Delta, out: list[Delta]) -> None:
        """Told now, unless it is held back, or was told in an earlier try."""
        if self._held is not None:
            self._held.append(delta)
        elif isinstance(delta, Text):
            if not (self._again and self._told.text):
                out.append(delta)
        elif isinstance(delta, Thought | Summary):
            if not (self._again and self._told.thoughts):
                out.append(delta)
        else:
            out.append(delta)
        if self._held is None and not self._again:
            self._told.text = self._told.text or isinstance(delta, Text)
            self._told.thoughts = self._told.thoughts or isinstance(delta, Thought | Summary)

    def _unheld(self, held: Sequence[Delta]) -> Iterable[Delta]:
        """With calls in one piece, and without those that were told in an earlier try."""
        calls = {call.started.key: call for call in self._calls}
        twice = {key for key, call in calls.items() if self._again and (call.key, call.text) in self._told.calls}
        whole = self._whole()
        for delta in held:
            if isinstance(delta, Text) and whole is not None:
                if whole:
                    yield Text(whole)
                whole = ""
            elif isinstance(delta, CallStarted):
                if delta.key not in twice:
                    yield delta
                    if calls[delta.key].held:
                        yield from _rest(calls[delta.key])
            elif not (isinstance(delta, CallDelta | CallDone) and delta.key in twice):
                yield delta

    def _whole(self) -> str | None:
        """The answer, if it had to be mended; "" for what stands beside a call and has not the form it should have."""
        form = self._rules.form
        if form is None or not form.held or len(self._answers) > 1 or not self._answers[0]:
            return None
        fit = form.fit("".join(self._answers[0]))
        if fit.mended:
            return fit.text
        return "" if fit.fault and self._calls else None

    def _judge_call(self, call: _Call, rule: ToolRule) -> None:
        fit = rule.fit(call.text)
        if fit.mended and rule.held:
            call.fitted = fit.text
            self.mended.append("arguments")
        elif fit.fault or fit.mended:
            about = "arguments do" if not rule.text else "input does"
            complaint = f"The {about} not fit what {rule.offered} takes: {fit.fault}. Call it again, rightly."
            self.misfit = self._miss("arguments", complaint, final=not rule.held)

    def _judge_form(self) -> None:
        form = self._rules.form
        assert form is not None
        for answer in self._answers:
            if len(self._answers) > 1 and not answer:
                continue
            fit = form.fit("".join(answer))
            if fit.mended and form.held and len(self._answers) == 1:
                self.mended.append("format")
            elif fit.fault or fit.mended:
                self.misfit = self._miss("format", form.complaint(fit.fault), final=not form.held)
                return

    def _no_call(self) -> str:
        names = [rule.offered for key, rule in self._rules.tools.items() if key in (self._rules.must or {key})]
        return f"Now call one of these tools, as you were told how to, and say nothing else: {', '.join(names)}."

    def _miss(self, reason: Reason, complaint: str, final: bool = False) -> Misfit:
        calls = [f"{call.started.name}({call.text})" for call in self._calls]
        text = "".join([delta.text for texts in self._said for delta in texts])
        said = "\n".join([text, *calls]).strip()
        return Misfit(reason=reason, said=said[:LONGEST_SAID], complaint=complaint, final=final)


def _rest(call: _Call) -> Iterable[Delta]:
    if call.text:
        yield CallDelta(call.started.key, call.text)
    if call.done:
        yield CallDone(call.started.key)
