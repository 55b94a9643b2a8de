"""A jinja2 sandbox for models' chat templates in which the template's own literals are traced.

It behaves as the environment that templates are written for (trimmed blocks, loop controls,
`tojson` without HTML escapes, `raise_exception`, `strftime_now`, the `generation` tag).
No loader, no clock, no way to write to what is handed in.
"""

import json
from collections.abc import Callable, Iterable
from typing import Any

from jinja2 import Template, nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.exceptions import TemplateError
from jinja2.ext import Extension, LoopControlExtension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from antiphon.render.template.provenance_str import Traced, is_own, join, own


class Literals(CodeGenerator):
    """Writes `environment.literals[n]` wherever the template has a string of its own."""

    def visit_Const(self, node: nodes.Const, frame: Frame) -> None:  # noqa: N802  # jinja2 names visitors so
        self.write(self._written(node.as_const(frame.eval_ctx)))

    def visit_TemplateData(self, node: nodes.TemplateData, frame: Frame) -> None:  # noqa: N802  # as above
        self.write(self._literal(node.data))

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:  # noqa: N802  # as above
        """`a ~ b`"""
        self.write("environment.concat((")
        for part in node.nodes:
            self.visit(part, frame)
            self.write(", ")
        self.write("))")

    def _output_const_repr(self, group: Iterable[Any]) -> str:
        return self._literal("".join(map(str, group)))

    def _written(self, value: Any) -> str:
        """jinja2 folds tables of constants into one constant."""
        match value:
            case str():
                return self._literal(value)
            case list():
                return f"[{', '.join(map(self._written, value))}]"
            case tuple():
                return f"({''.join([self._written(item) + ', ' for item in value])})"
            case dict():
                pairs = [f"{self._written(key)}: {self._written(item)}" for key, item in value.items()]
                return f"{{{', '.join(pairs)}}}"
        return str(value) if isinstance(value, float) else repr(value)

    def _literal(self, text: str) -> str:
        assert isinstance(self.environment, Sandbox)
        self.environment.literals.append(own(text))
        return f"environment.literals[{len(self.environment.literals) - 1}]"


class Generation(Extension):
    """`{% generation %}` marks what an assistant said, for training; here it is its content."""

    tags = {"generation"}  # noqa: RUF012  # jinja2 declares it so

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


class Sandbox(ImmutableSandboxedEnvironment):
    """One for each template: it holds that template's literals."""

    code_generator_class = Literals
    concat = staticmethod(join)

    def __init__(self) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[LoopControlExtension, Generation])
        self.literals: list[Traced] = []
        self.filters |= {"tojson": _to_json, "safe": _as_is}
        self.globals["raise_exception"] = _raise

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """`'<{}>'.format(x)` is the template's own if it is made of nothing else."""
        wrapped = super().wrap_str_format(value)
        if wrapped is None or not is_own(value.__self__):
            return wrapped

        def traced(*args: Any, **named: Any) -> str:
            text = wrapped(*args, **named)
            return own(text) if all(map(is_own, (*args, *named.values()))) else text

        return traced


def compile_template(source: str) -> Template:
    """Raises jinja2's TemplateSyntaxError."""
    return Sandbox().from_string(source)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _as_is(value: Any) -> Any:
    return value


def _raise(message: str) -> None:
    raise TemplateError(message)
