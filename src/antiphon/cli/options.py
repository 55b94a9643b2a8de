"""Settings as options of a command: made from the table, grouped in the help, read as text.

The click side knows no types or defaults: config/sources.py checks a flag as it checks a variable.
"""

from collections.abc import Iterable
from functools import partial
from itertools import groupby
from typing import Any

import click
from click.core import ParameterSource
from msgspec import inspect

from antiphon.config.help_text import LIMITS
from antiphon.config.sources import Setting, load, settings

AGAIN = "antiphon.again"  # in the context: how the settings are read once more
FOOT = "Each option is also a variable (--log-level: ANTIPHON_LOG_LEVEL) and a key of antiphon.toml (log_level)."


class SettingOption(click.Option):
    """A flag for one row of the table."""

    def __init__(self, row: Setting) -> None:
        off = "/--no-" + row.flag.removeprefix("--") if row.switch else ""
        also = ["--" + name.replace("_", "-") for name in row.names[1:]]
        alone: dict[str, Any] = {"is_flag": False, "flag_value": "true"} if "true" in row.note.words else {}
        super().__init__(
            [row.flag + off, *also, row.name],
            type=bool if row.switch else str,
            **alone,
            metavar=None if row.switch else _metavar(row.kind),
            multiple=row.repeats,
            help=f"{row.note.text}  [{row.shown_default}]",
        )
        self.group = row.note.group
        self._also = also

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        """Under its own name alone."""
        names, text = super().get_help_record(ctx) or ("", "")
        for flag in self._also:
            names = names.replace(f", {flag}", "")
        return names, text


class SettingsCommand(click.Command):
    """A command that is handed a Config, made of the flags given here and of all other sources.

    An argument named `first_model` is one more, leading, `--model`."""

    def __init__(self, *args: Any, rows: Iterable[Setting] = (), **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.rows = list(rows)
        self.params += [SettingOption(row) for row in self.rows]
        if any(row.note.group == LIMITS.title for row in self.rows):
            self.params.append(_help_limits())

    def invoke(self, ctx: click.Context) -> Any:
        flags = {row.name: ctx.params.pop(row.name) for row in self.rows}
        given = {name: value for name, value in flags.items() if _was_given(ctx, name)}
        if first := ctx.params.pop("first_model", None):
            given["model"] = (first, *given.get("model", ()))
        self.take(ctx, given)
        return super().invoke(ctx)

    def take(self, ctx: click.Context, given: dict[str, Any]) -> None:
        """What was given here, on its way to the command."""
        ctx.params["config"] = load(given)
        ctx.meta[AGAIN] = partial(load, given)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        ours = [one for one in self.params if isinstance(one, SettingOption)]
        rest = [one for one in self.get_params(ctx) if not isinstance(one, SettingOption | click.Argument)]
        _write(ctx, formatter, "Options", rest)
        for title, group in groupby(ours, key=lambda one: one.group):
            if title != LIMITS.title:
                _write(ctx, formatter, title, group)
        if ours:
            formatter.write_paragraph()
            formatter.write_text(FOOT)


def in_groups(*titles: str) -> list[Setting]:
    return [row for row in settings().values() if row.note.group in titles]


def named(*names: str) -> list[Setting]:
    return [settings()[name] for name in names]


def _was_given(ctx: click.Context, name: str) -> bool:
    return ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE


def _write(ctx: click.Context, formatter: click.HelpFormatter, title: str, options: Iterable[click.Parameter]) -> None:
    records = [record for option in options if (record := option.get_help_record(ctx))]
    with formatter.section(title):
        formatter.write_dl(records)


def _help_limits() -> click.Option:
    return click.Option(
        ["--help-limits"],
        is_flag=True,
        expose_value=False,
        is_eager=True,
        callback=_show_limits,
        help="Show the options that bound what clients may send, and exit.",
    )


def _show_limits(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
    if not wanted:
        return
    formatter = ctx.make_formatter()
    _write(ctx, formatter, LIMITS.title, (SettingOption(row) for row in in_groups(LIMITS.title)))
    click.echo(formatter.getvalue().rstrip())
    ctx.exit()


def _metavar(kind: inspect.Type) -> str:
    match kind:
        case inspect.IntType():
            return "N"
        case inspect.FloatType():
            return "NUMBER"
        case inspect.LiteralType():
            return "|".join(map(str, kind.values))
        case inspect.CustomType():
            return "PATH"
        case inspect.VarTupleType():
            return _metavar(kind.item_type)
        case inspect.UnionType():
            return _metavar(next(one for one in kind.types if not isinstance(one, inspect.NoneType)))
        case _:
            return "TEXT"
