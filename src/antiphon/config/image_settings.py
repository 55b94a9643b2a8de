"""Image services: `--image-service URL[=KEY]`, or the tables of the TOML file of `--image-service-config`, by name.

[draw]
url = "http://gpu-1:8000"                                # or vllm-omni://gpu-1:8000, without `kind`
kind = "vllm-omni"
key = "env:DRAW_KEY"
models = { "gpt-image-2" = "Qwen/Qwen-Image" }           # the name that clients use = the name at the service
defaults = { num_inference_steps = 20 }                  # fields of every request that the client does not set
timeout = 300

A key is sent to its service only and never shown.
"""

import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Final, Literal, get_args

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from antiphon.config.setting_types import Count, Key, Name, Seconds
from antiphon.config.toml_tables import render_table_error, resolve_secret, to_path
from antiphon.errors import StartupError

ImageServiceKind = Literal["openai", "vllm-omni", "sglang", "sd.cpp", "localai", "fake"]
FAKE: Final = "fake"
_RESERVED: Final = {"prompt", "model", "n", "stream", "partial_images", "response_format"}  # the server sets them
_WEB_SCHEMES: Final = ("http", "https", "unix")  # URL schemes that do not name the kind


class ImageServiceSpec(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A table of the file of `--image-service-config`."""

    url: Annotated[Name, "`http://HOST:PORT/PATH` or `https://…`, or `KIND://…` and `KIND+https://…` with the kind."]
    kind: Annotated[ImageServiceKind, "`openai`, `vllm-omni`, `sglang`, `sd.cpp`, `localai` or `fake`."] = "openai"
    key: Annotated[Key | None, "API key of the service, sent to it only; `env:NAME` reads it from a variable."] = None
    ca: Annotated[Path | None, "File of CA certificates to verify it with; default: those of the system."] = None
    models: Annotated[dict[Name, Name], "Models by the names that clients use; default: every name is passed on."] = {}
    defaults: Annotated[
        dict[Name, Any], "Fields to send in requests that do not set them, also fields of its own."
    ] = {}
    timeout: Annotated[Seconds, "Seconds until a request to it fails."] = 180.0
    slots: Annotated[Count, "Maximum number of concurrent requests to it."] = 8
    name: Annotated[str, "Name in logs, metrics and messages; default: that of the table."] = ""

    def __repr__(self) -> str:
        """Omits the key."""
        return f"ImageServiceSpec(name={self.name!r}, url={self.url!r}, kind={self.kind!r})"


class ImageSettings(Struct, frozen=True, kw_only=True):
    """The services that make images."""

    image_service: Annotated[
        tuple[Key, ...],
        "URL[=KEY] of a server with OpenAI's images API: http:// or https://HOST:PORT, or with its kind vllm-omni://,"
        " sglang://, sd.cpp:// or localai:// (see images), or fake (draws patterns, for tests).",
        "none: no images are made",
    ] = ()
    image_service_config: Annotated[
        Path | None, "TOML file with a table for each image service, which has more options (see images).", "none"
    ] = None

    def __repr__(self) -> str:
        """Omits the keys."""
        return f"ImageSettings(image_service=<{len(self.image_service)}>)"

    def load_specs(self) -> list[ImageServiceSpec]:
        """Return all services, those of the file first. Raises StartupError."""
        specs = [] if self.image_service_config is None else _read_file(self.image_service_config)
        flags = [_parse_flag(text, number) for number, text in enumerate(self.image_service, 1)]
        return _check_names([*specs, *flags])


def _parse_flag(text: str, number: int) -> ImageServiceSpec:
    url, _, key = text.partition("=")
    spec = _split_kind(ImageServiceSpec(url=url, key=resolve_secret(key, "--image-service reads a key") or None))
    return replace(spec, name=spec.kind if number == 1 else f"{spec.kind}-{number}")


def _split_kind(spec: ImageServiceSpec) -> ImageServiceSpec:
    """Move the kind out of the URL: `vllm-omni+https://host` has the kind vllm-omni and the URL https://host."""
    if FAKE in (spec.url, spec.kind):
        return replace(spec, url=FAKE, kind=FAKE)
    scheme, colon, location = spec.url.partition("://")
    kind, _, web_scheme = scheme.partition("+")
    if colon and scheme not in _WEB_SCHEMES and kind in get_args(ImageServiceKind):
        return replace(spec, kind=kind, url=f"{web_scheme or 'http'}://{location}")
    if not colon or scheme not in _WEB_SCHEMES:
        kinds = ", ".join(get_args(ImageServiceKind))
        raise StartupError(
            f"The URL of an image service begins with http://, https:// or its kind ({kinds}), or is fake."
        )
    return spec


def _read_file(path: Path) -> list[ImageServiceSpec]:
    try:
        content = tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise StartupError(f"--image-service-config names {path}, which cannot be read: {error.strerror}.")
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise StartupError(f"{path} is not valid TOML: {error}.")
    try:
        tables = msgspec.convert(content, dict[str, ImageServiceSpec], strict=True, dec_hook=to_path)
    except msgspec.ValidationError as error:
        raise StartupError(f"{path} is invalid: {render_table_error(str(error))}.")
    return [_complete_table(name, spec, path) for name, spec in tables.items()]


def _complete_table(name: str, spec: ImageServiceSpec, path: Path) -> ImageServiceSpec:
    if reserved := sorted(_RESERVED & spec.defaults.keys()):
        raise StartupError(f"[{name}] in {path}: `defaults` cannot set {reserved[0]}.")
    key = None if spec.key is None else resolve_secret(spec.key, f"[{name}] in {path} reads a key")
    return _split_kind(replace(spec, name=spec.name or name, key=key))


def _check_names(specs: Sequence[ImageServiceSpec]) -> list[ImageServiceSpec]:
    names = [spec.name for spec in specs]
    if duplicates := sorted({name for name in names if names.count(name) > 1}):
        raise StartupError(f"The image service {duplicates[0]} is configured twice.")
    return [*specs]
