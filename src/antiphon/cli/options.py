"""Settings as click options: generated from the table and grouped in the help.

click passes all values on as text: config/sources.py checks flags as it checks environment variables.
"""

from collections.abc import Callable, Iterable
from functools import partial
from itertools import groupby
from typing import Any

import click
from click.core import ParameterSource
from msgspec import inspect

from antiphon.config.deprecations import DEPRECATIONS
from antiphon.config.settings import LIMITS, Setting, settings
from antiphon.config.sources import load

_WRITTEN_KEY = "antiphon.written"  # key in the click context: the flags as they were written
RELOAD_KEY = "antiphon.again"  # key in the click context: a function that reads the settings again
FOOTER = "Options are also variables (--log-level: ANTIPHON_LOG_LEVEL) and keys of antiphon.toml (log_level)."
MORE_OPTIONS = "These are the most used of {count} options; `{command} --help-all` shows all of them."

# The options that `--help` shows for commands that accept all settings.
COMMON_SETTINGS = frozenset({
    *("config", "host", "port", "workers", "api_key", "api_key_file", "allow_origin"),
    *("model", "engine", "engine_key", "served_model_name", "alias", "tool_call_parser", "reasoning_parser"),
    *("max_output_tokens", "context", "gpu_layers", "store", "store_ttl", "live"),
    *("mcp_server", "web_search_url", "enable_computer_call", "allow_egress", "log_level", "access_log"),
})  # fmt: skip


class SettingOption(click.Option):
    def __init__(self, row: Setting) -> None:
        off = "/--no-" + row.flag.removeprefix("--") if row.is_switch else ""
        aliases = ["--" + name.replace("_", "-") for name in row.names[1:]]
        flag_options: dict[str, Any] = {"is_flag": False, "flag_value": "true"} if "true" in row.synonyms else {}
        super().__init__(
            [row.flag + off, *aliases, row.name],
            type=bool if row.is_switch else str,
            **flag_options,
            metavar=None if row.is_switch else _choose_metavar(row.value_kind),
            multiple=row.is_repeatable,
            help=f"{row.text}  [{row.default_text}]",
        )
        self.group = row.group
        self._aliases = aliases

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        """Show the main name of the option only."""
        names, text = super().get_help_record(ctx) or ("", "")
        for flag in self._aliases:
            names = names.replace(f", {flag}", "")
        return names, text


class SettingsCommand(click.Command):
    """A command that gets a Config from all sources. An argument named `first_model` precedes the `--model` values."""

    def __init__(self, *args: Any, rows: Iterable[Setting] = (), **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.rows = list(rows)
        self.params += [SettingOption(row) for row in self.rows]
        if any(row.group == LIMITS for row in self.rows):
            self.params += [
                _make_help_option("--help-all", "Show all options, and exit.", self.print_all_options),
                _make_help_option(
                    "--help-limits", "Show the options that limit client input, and exit.", _print_limits
                ),
            ]

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.meta[_WRITTEN_KEY] = {arg.partition("=")[0] for arg in args}
        return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        flags = {row.name: ctx.params.pop(row.name) for row in self.rows}
        values = {
            _find_written_name(ctx, name): value
            for name, value in flags.items()
            if ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE
        }
        if first := ctx.params.pop("first_model", None):
            values["model"] = (first, *values.get("model", ()))
        self.set_params(ctx, values)
        return super().invoke(ctx)

    def set_params(self, ctx: click.Context, values: dict[str, Any]) -> None:
        """Set the parameters of the command from the flags."""
        ctx.params["config"] = load(values, lambda sentence: click.echo(f"antiphon: {sentence}", err=True))
        ctx.meta[RELOAD_KEY] = partial(load, values)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options of `--help`: all of a command with few, the common ones of a command with all settings."""
        options = [option for option in self.params if isinstance(option, SettingOption)]
        common = [option for option in options if option.name in COMMON_SETTINGS]
        shortened = len(options) > 2 * len(COMMON_SETTINGS)
        self._write_options(ctx, formatter, common if shortened else options)
        if shortened:
            formatter.write_text(MORE_OPTIONS.format(count=len(options), command=ctx.command_path))

    def print_all_options(self, ctx: click.Context) -> None:
        formatter = ctx.make_formatter()
        self.format_usage(ctx, formatter)
        self._write_options(ctx, formatter, [option for option in self.params if isinstance(option, SettingOption)])
        click.echo(formatter.getvalue().rstrip())

    def _write_options(
        self, ctx: click.Context, formatter: click.HelpFormatter, setting_options: list[SettingOption]
    ) -> None:
        others = [option for option in self.get_params(ctx) if not isinstance(option, SettingOption | click.Argument)]
        _write_section(ctx, formatter, "Options", others)
        for title, group in groupby(setting_options, key=lambda option: option.group):
            _write_section(ctx, formatter, title, group)
        if setting_options:
            formatter.write_paragraph()
            formatter.write_text(FOOTER)


def _find_written_name(ctx: click.Context, name: str) -> str:
    """Return the alternative name of a setting if the command line has that one and it is deprecated."""
    deprecated = [other for other in settings()[name].names if other in DEPRECATIONS]
    return next((other for other in deprecated if f"--{other.replace('_', '-')}" in ctx.meta[_WRITTEN_KEY]), name)


def settings_in_groups(*titles: str) -> list[Setting]:
    return [row for row in settings().values() if row.group in titles]


def settings_by_name(*names: str) -> list[Setting]:
    return [settings()[name] for name in names]


def _write_section(
    ctx: click.Context, formatter: click.HelpFormatter, title: str, options: Iterable[click.Parameter]
) -> None:
    records = [record for option in options if (record := option.get_help_record(ctx))]
    with formatter.section(title):
        formatter.write_dl(records)


def _make_help_option(flag: str, text: str, show: Callable[[click.Context], None]) -> click.Option:
    """Create a flag that prints something instead of running the command."""

    def call(ctx: click.Context, _: click.Parameter, enabled: bool) -> None:
        if enabled:
            show(ctx)
            ctx.exit()

    return click.Option([flag], is_flag=True, expose_value=False, is_eager=True, callback=call, help=text)


def _print_limits(ctx: click.Context) -> None:
    formatter = ctx.make_formatter()
    _write_section(ctx, formatter, LIMITS, (SettingOption(row) for row in settings_in_groups(LIMITS)))
    click.echo(formatter.getvalue().rstrip())


def _choose_metavar(kind: inspect.Type) -> str:
    """`kind`: the type of one value."""
    match kind:
        case inspect.IntType():
            return "N"
        case inspect.FloatType():
            return "NUMBER"
        case inspect.LiteralType():
            return "|".join(map(str, kind.values))
        case inspect.CustomType():
            return "PATH"
        case _:
            return "TEXT"
