"""GBNF grammars that clients send are vetted before an engine sees them: one that is malformed has killed engines.

    root ::= greeting " " name{1,3}
    name ::= [A-Z] [a-z]+ | "you"

A fit grammar is well formed, has a root, refers only to its own rules, is of bounded size also when its repetitions are
written out, and no rule begins with itself: who follows that never ends. Linear in the length of the text.
"""

import re
from collections import defaultdict
from graphlib import CycleError, TopologicalSorter
from typing import Final

from msgspec import Struct, field

from antiphon.errors import InvalidValue
from antiphon.limits import Limits

_TOKEN = re.compile(
    r"""(?P<blank>\s+|\#[^\n]*)
      | (?P<name>[A-Za-z][A-Za-z0-9_.-]*)
      | (?P<defines>::=)
      | (?P<text>"(?:[^"\\\n]|\\.)*")
      | (?P<set>\[(?:[^\]\\\n]|\\.)*\])
      | (?P<times>\*|\+|\?|\{\s*\d{1,6}\s*(?:,\s*(?:\d{1,6}\s*)?)?\})
      | (?P<mark>[()|.])""",
    re.VERBOSE,
)
_NUMBERS = re.compile(r"\d+")
_MOST_TIMES: Final = 1000
_WRITTEN_OUT: Final = 4  # times as large a grammar may be, once its repetitions are written out
_ROOT: Final = "root"

_Token = tuple[str, str]


class _Item(Struct):
    """Of a sequence: a rule, or something that is said; it may be left out if it is optional."""

    rule: str | None = None
    optional: bool = False


_Rules = dict[str, list[list[_Item]]]  # of each: its alternatives, which are sequences


class _Group(Struct):
    """What is being read: a rule, or what stands in brackets, which becomes a rule without a name."""

    rule: str
    sequence: list[_Item] = field(default_factory=list)
    size: int = 0


def vet_gbnf(text: str, param: str, limits: Limits) -> None:
    """Raise InvalidValue, naming `param`, unless it is fit."""
    if not text or len(text) > limits.schema_bytes:
        raise _unfit(param, f"it has 1 to {limits.schema_bytes} characters")
    rules = _Reading(_tokens(text, param, limits), param, limits).rules()
    for name in {item.rule for sequences in rules.values() for sequence in sequences for item in sequence}:
        if name is not None and name not in rules:
            raise _unfit(param, f"there is no rule {name[:64]!r}")
    if _ROOT not in rules:
        raise _unfit(param, f"there is no rule {_ROOT!r}")
    try:
        TopologicalSorter(_beginnings(rules)).prepare()
    except CycleError as error:
        rule = next((name for name in error.args[1] if not name.startswith("(")), _ROOT)
        raise _unfit(param, f"the rule {rule[:64]!r} begins with itself") from None


def _tokens(text: str, param: str, limits: Limits) -> list[_Token]:
    found: list[_Token] = []
    at = 0
    while at < len(text):
        token = _TOKEN.match(text, at)
        if token is None:
            raise _unfit(param, f"it cannot be read from {text[at : at + 20]!r} on")
        at = token.end()
        if token.lastgroup != "blank":
            found.append((token.lastgroup or "", token.group()))
        if len(found) > limits.schema_nodes:
            raise _unfit(param, f"it has more than {limits.schema_nodes} words")
    return found


class _Reading:
    def __init__(self, tokens: list[_Token], param: str, limits: Limits) -> None:
        self._tokens = tokens
        self._param = param
        self._limits = limits
        self._rules: _Rules = {}
        self._open: list[_Group] = []
        self._size = 0
        self._nameless = 0

    def rules(self) -> _Rules:
        for index, (kind, text) in enumerate(self._tokens):
            if kind == "name" and self._tokens[index + 1 : index + 2] == [("defines", "::=")]:
                self._define(text)
            elif kind != "defines" or index == 0 or self._tokens[index - 1][0] != "name":
                self._take(kind, text)
        self._end_rule()
        return self._rules

    def _define(self, name: str) -> None:
        self._end_rule()
        if name in self._rules:
            raise _unfit(self._param, f"there are two rules {name[:64]!r}")
        self._rules[name] = []
        self._open = [_Group(name)]

    def _end_rule(self) -> None:
        if len(self._open) > 1:
            raise _unfit(self._param, "a bracket is not closed")
        if self._open:
            self._end_sequence(self._open[0])
            self._grow(self._open[0].size)

    def _take(self, kind: str, text: str) -> None:
        if not self._open:
            raise _unfit(self._param, "it begins with a rule: name ::= …")
        group = self._open[-1]
        match kind, text:
            case "name", _:
                self._add(group, _Item(text))
            case (("text" | "set"), _):
                self._add(group, _Item(None, text == '""'))
            case "times", _:
                self._repeat(group, text)
            case _, ".":
                self._add(group, _Item())
            case _, "|":
                self._end_sequence(group)
            case _, "(":
                self._open_bracket()
            case _, ")":
                self._close_bracket()
            case _:
                raise _unfit(self._param, f"{text!r} stands where it means nothing")

    def _add(self, group: _Group, item: _Item, size: int = 1) -> None:
        group.sequence.append(item)
        group.size += size
        self._last = size

    def _repeat(self, group: _Group, text: str) -> None:
        if not group.sequence:
            raise _unfit(self._param, f"{text!r} follows nothing that could be repeated")
        numbers = [int(number) for number in _NUMBERS.findall(text)]
        if any(number > _MOST_TIMES for number in numbers):
            raise _unfit(self._param, f"nothing may be repeated more than {_MOST_TIMES} times")
        if text in "*?" or (numbers and numbers[0] == 0):
            group.sequence[-1].optional = True
        group.size += self._last * (max([*numbers, 1]) - 1)
        self._last *= max([*numbers, 1])
        self._grow(0, group.size)

    def _end_sequence(self, group: _Group) -> None:
        self._rules[group.rule].append(group.sequence)
        group.sequence = []

    def _open_bracket(self) -> None:
        if len(self._open) > self._limits.schema_depth:
            raise _unfit(self._param, f"its brackets are nested deeper than {self._limits.schema_depth} levels")
        self._nameless += 1
        name = f"({self._nameless}"
        self._rules[name] = []
        self._open.append(_Group(name))

    def _close_bracket(self) -> None:
        if len(self._open) == 1:
            raise _unfit(self._param, "a bracket is closed that is not open")
        group = self._open.pop()
        self._end_sequence(group)
        self._add(self._open[-1], _Item(group.rule), max(group.size, 1))

    def _grow(self, size: int, open_size: int = 0) -> None:
        self._size += size
        most = _WRITTEN_OUT * self._limits.schema_nodes
        if self._size + open_size > most:
            raise _unfit(self._param, f"it is larger than {most} once its repetitions are written out")


def _beginnings(rules: _Rules) -> dict[str, set[str]]:
    """Of each rule, with which ones it can begin."""
    empty = _can_be_empty(rules)
    found: dict[str, set[str]] = {name: set() for name in rules}
    for name, sequences in rules.items():
        for sequence in sequences:
            for item in sequence:
                if item.rule is not None:
                    found[name].add(item.rule)
                if not (item.optional or item.rule in empty):
                    break
    return found


def _can_be_empty(rules: _Rules) -> set[str]:
    """Each sequence waits for the first item of which it is not known whether it can be nothing."""
    empty: set[str] = set()
    waiting: defaultdict[str, list[tuple[str, list[_Item], int]]] = defaultdict(list)
    ready = [(name, sequence, 0) for name, sequences in rules.items() for sequence in sequences]
    while ready:
        name, sequence, at = ready.pop()
        while at < len(sequence) and (sequence[at].optional or sequence[at].rule in empty):
            at += 1
        if at < len(sequence):
            if (rule := sequence[at].rule) is not None:
                waiting[rule].append((name, sequence, at))
        elif name not in empty:
            empty.add(name)
            ready += waiting.pop(name, ())
    return empty


def _unfit(param: str, reason: str) -> InvalidValue:
    return InvalidValue(f"Invalid value for '{param}': {reason}.", param=param)
