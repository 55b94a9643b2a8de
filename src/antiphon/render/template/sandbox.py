"""A jinja2 sandbox for chat templates of models, in which the template's own literals are traced.

It behaves like the environment that templates are written for (trimmed blocks, loop controls, `tojson` without HTML
escapes, `raise_exception`, `strftime_now`, the `generation` tag). It has no loader and no clock, and templates cannot
modify the values passed to them.
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

from antiphon.render.template.provenance_str import ProvenanceStr, is_trusted, join_traced, trust


class LiteralCodeGenerator(CodeGenerator):
    """Emits `environment.literals[n]` for every string literal of the template."""

    def visit_Const(self, node: nodes.Const, frame: Frame) -> None:  # noqa: N802  # jinja2 visitor name
        self.write(self._render_constant(node.as_const(frame.eval_ctx)))

    def visit_TemplateData(self, node: nodes.TemplateData, frame: Frame) -> None:  # noqa: N802  # as above
        self.write(self._register_literal(node.data))

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:  # noqa: N802  # as above
        """Compile `a ~ b` to a traced join."""
        self.write("environment.concat((")
        for part in node.nodes:
            self.visit(part, frame)
            self.write(", ")
        self.write("))")

    def _output_const_repr(self, group: Iterable[Any]) -> str:
        return self._register_literal("".join(map(str, group)))

    def _render_constant(self, value: Any) -> str:
        """Render a constant; jinja2 folds lists, tuples and dicts of constants into one."""
        match value:
            case str():
                return self._register_literal(value)
            case list():
                return f"[{', '.join(map(self._render_constant, value))}]"
            case tuple():
                return f"({''.join([self._render_constant(item) + ', ' for item in value])})"
            case dict():
                pairs = [f"{self._render_constant(key)}: {self._render_constant(item)}" for key, item in value.items()]
                return f"{{{', '.join(pairs)}}}"
        return str(value) if isinstance(value, float) else repr(value)

    def _register_literal(self, text: str) -> str:
        assert isinstance(self.environment, Sandbox)
        self.environment.literals.append(trust(text))
        return f"environment.literals[{len(self.environment.literals) - 1}]"


class GenerationExtension(Extension):
    """Renders the content of `{% generation %}`, a tag that marks assistant text for training."""

    tags = {"generation"}  # noqa: RUF012  # declared this way by jinja2

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)


class Sandbox(ImmutableSandboxedEnvironment):
    """Environment of a single template, because it holds that template's literals."""

    code_generator_class = LiteralCodeGenerator
    concat = staticmethod(join_traced)

    def __init__(self) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[LoopControlExtension, GenerationExtension])
        self.literals: list[ProvenanceStr] = []
        self.filters |= {"tojson": _to_json, "safe": _return_unchanged}
        self.globals["raise_exception"] = _raise_exception

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """Trace `'<{}>'.format(x)`: the result is trusted if the format string and all arguments are."""
        wrapped = super().wrap_str_format(value)
        if wrapped is None or not is_trusted(value.__self__):
            return wrapped

        def format_traced(*args: Any, **named: Any) -> str:
            text = wrapped(*args, **named)
            return trust(text) if all(map(is_trusted, (*args, *named.values()))) else text

        return format_traced


def compile_template(source: str) -> Template:
    """Compile a chat template. Raises jinja2's TemplateSyntaxError."""
    return Sandbox().from_string(source)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _return_unchanged(value: Any) -> Any:
    return value


def _raise_exception(message: str) -> None:
    raise TemplateError(message)
