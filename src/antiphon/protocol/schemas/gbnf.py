"""Vets GBNF grammars of clients (llama.cpp's grammar format) before an engine receives them: malformed ones crash
engines.

    root ::= greeting " " name{1,3}
    name ::= [A-Z] [a-z]+ | "you"

A grammar is accepted if it is well formed, has a root, refers only to its own rules, has a bounded size even with its
repetitions expanded, and has no left recursion, which would make a parser recurse without end. The check is linear in
the length of the text.
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
_MAX_REPETITIONS: Final = 1000
_EXPANSION_FACTOR: Final = 4  # limit of the expanded size, as a multiple of `schema_nodes`
_ROOT: Final = "root"

_Token = tuple[str, str]


class _GbnfItem(Struct):
    """An element of a sequence: a rule, or a terminal. An optional one may be empty."""

    rule: str | None = None
    optional: bool = False


_GbnfRules = dict[str, list[list[_GbnfItem]]]  # the alternatives of each rule; an alternative is a sequence


class _GbnfGroup(Struct):
    """The rule or group being parsed. A group in brackets becomes an anonymous rule."""

    rule: str
    sequence: list[_GbnfItem] = field(default_factory=list)
    size: int = 0


def vet_gbnf(text: str, param: str, limits: Limits) -> None:
    """Raise InvalidValue, naming `param`, unless the grammar is acceptable."""
    if not text or len(text) > limits.schema_bytes:
        raise _invalid(param, f"it must have 1 to {limits.schema_bytes} characters")
    rules = _GbnfParser(_tokenise(text, param, limits), param, limits).parse()
    for name in {item.rule for sequences in rules.values() for sequence in sequences for item in sequence}:
        if name is not None and name not in rules:
            raise _invalid(param, f"there is no rule {name[:64]!r}")
    if _ROOT not in rules:
        raise _invalid(param, f"there is no rule {_ROOT!r}")
    try:
        TopologicalSorter(_find_first_rules(rules)).prepare()
    except CycleError as error:
        rule = next((name for name in error.args[1] if not name.startswith("(")), _ROOT)
        raise _invalid(param, f"the rule {rule[:64]!r} is left-recursive") from None


def _tokenise(text: str, param: str, limits: Limits) -> list[_Token]:
    found: list[_Token] = []
    position = 0
    while position < len(text):
        token = _TOKEN.match(text, position)
        if token is None:
            raise _invalid(param, f"the text at {text[position : position + 20]!r} is not valid GBNF")
        position = token.end()
        if token.lastgroup != "blank":
            found.append((token.lastgroup or "", token.group()))
        if len(found) > limits.schema_nodes:
            raise _invalid(param, f"it has more than {limits.schema_nodes} tokens")
    return found


class _GbnfParser:
    def __init__(self, tokens: list[_Token], param: str, limits: Limits) -> None:
        self._tokens = tokens
        self._param = param
        self._limits = limits
        self._rules: _GbnfRules = {}
        self._open: list[_GbnfGroup] = []
        self._size = 0
        self._group_count = 0

    def parse(self) -> _GbnfRules:
        for index, (kind, text) in enumerate(self._tokens):
            if kind == "name" and self._tokens[index + 1 : index + 2] == [("defines", "::=")]:
                self._start_rule(text)
            elif kind != "defines" or index == 0 or self._tokens[index - 1][0] != "name":
                self._take_token(kind, text)
        self._end_rule()
        return self._rules

    def _start_rule(self, name: str) -> None:
        self._end_rule()
        if name in self._rules:
            raise _invalid(self._param, f"duplicate rule {name[:64]!r}")
        self._rules[name] = []
        self._open = [_GbnfGroup(name)]

    def _end_rule(self) -> None:
        if len(self._open) > 1:
            raise _invalid(self._param, "a bracket is not closed")
        if self._open:
            self._end_sequence(self._open[0])
            self._add_size(self._open[0].size)

    def _take_token(self, kind: str, text: str) -> None:
        if not self._open:
            raise _invalid(self._param, "it must begin with a rule: name ::= …")
        group = self._open[-1]
        match kind, text:
            case "name", _:
                self._add(group, _GbnfItem(text))
            case (("text" | "set"), _):
                self._add(group, _GbnfItem(None, text == '""'))
            case "times", _:
                self._repeat(group, text)
            case _, ".":
                self._add(group, _GbnfItem())
            case _, "|":
                self._end_sequence(group)
            case _, "(":
                self._open_bracket()
            case _, ")":
                self._close_bracket()
            case _:
                raise _invalid(self._param, f"{text!r} is not allowed there")

    def _add(self, group: _GbnfGroup, item: _GbnfItem, size: int = 1) -> None:
        group.sequence.append(item)
        group.size += size
        self._last_size = size

    def _repeat(self, group: _GbnfGroup, text: str) -> None:
        if not group.sequence:
            raise _invalid(self._param, f"{text!r} has nothing to repeat")
        numbers = [int(number) for number in _NUMBERS.findall(text)]
        if any(number > _MAX_REPETITIONS for number in numbers):
            raise _invalid(self._param, f"a repetition count above {_MAX_REPETITIONS} is not allowed")
        if text in "*?" or (numbers and numbers[0] == 0):
            group.sequence[-1].optional = True
        group.size += self._last_size * (max([*numbers, 1]) - 1)
        self._last_size *= max([*numbers, 1])
        self._add_size(0, group.size)

    def _end_sequence(self, group: _GbnfGroup) -> None:
        self._rules[group.rule].append(group.sequence)
        group.sequence = []

    def _open_bracket(self) -> None:
        if len(self._open) > self._limits.schema_depth:
            raise _invalid(self._param, f"its brackets are nested deeper than {self._limits.schema_depth} levels")
        self._group_count += 1
        name = f"({self._group_count}"
        self._rules[name] = []
        self._open.append(_GbnfGroup(name))

    def _close_bracket(self) -> None:
        if len(self._open) == 1:
            raise _invalid(self._param, "a closing bracket has no opening bracket")
        group = self._open.pop()
        self._end_sequence(group)
        self._add(self._open[-1], _GbnfItem(group.rule), max(group.size, 1))

    def _add_size(self, size: int, open_size: int = 0) -> None:
        self._size += size
        max_size = _EXPANSION_FACTOR * self._limits.schema_nodes
        if self._size + open_size > max_size:
            raise _invalid(self._param, f"it has more than {max_size} elements once its repetitions are expanded")


def _find_first_rules(rules: _GbnfRules) -> dict[str, set[str]]:
    """Return, for each rule, the rules that it can begin with."""
    nullable = _find_nullable(rules)
    found: dict[str, set[str]] = {name: set() for name in rules}
    for name, sequences in rules.items():
        for sequence in sequences:
            for item in sequence:
                if item.rule is not None:
                    found[name].add(item.rule)
                if not (item.optional or item.rule in nullable):
                    break
    return found


def _find_nullable(rules: _GbnfRules) -> set[str]:
    """Return the rules that can match the empty string.

    Each sequence waits for its first item that is not yet known to be nullable.
    """
    nullable: set[str] = set()
    waiting: defaultdict[str, list[tuple[str, list[_GbnfItem], int]]] = defaultdict(list)
    ready = [(name, sequence, 0) for name, sequences in rules.items() for sequence in sequences]
    while ready:
        name, sequence, position = ready.pop()
        while position < len(sequence) and (sequence[position].optional or sequence[position].rule in nullable):
            position += 1
        if position < len(sequence):
            if (rule := sequence[position].rule) is not None:
                waiting[rule].append((name, sequence, position))
        elif name not in nullable:
            nullable.add(name)
            ready += waiting.pop(name, ())
    return nullable


def _invalid(param: str, reason: str) -> InvalidValue:
    return InvalidValue(f"Invalid value for '{param}': {reason}.", param=param)
