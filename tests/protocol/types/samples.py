"""Sample JSON for any wire type, generated from the type: one with only the required fields, one with every field."""

from typing import Any, get_args

import msgspec.inspect as types
from msgspec import Struct

# Fields that are free-form in our types and typed further by OpenAI.
_FIXED_VALUES: dict[tuple[str, str], Any] = {
    ("ImageGenerationCall", "error"): {"type": "image_error", "message": "no", "code": "x", "param": None},
    ("ImageGenerationCall", "svg_usage"): {
        "input_tokens": 1, "model": "m", "output_tokens": 1, "reasoning_tokens": 0, "total_tokens": 2,
    },
    ("ImageGenerationCall", "quality"): "high",
    ("ImageGenerationTool", "quality"): "high",
    ("ImageGenerationTool", "svg"): {"model": "m"},
    ("ContainerAuto", "skills"): [{"type": "skill_reference", "skill_id": "s"}],
    ("LocalEnvironment", "skills"): [{"name": "n", "description": "d", "path": "p"}],
    ("McpTool", "connector_id"): "connector_gmail",
    ("AdditionalTools", "role"): "developer",
    ("ShellCall", "environment"): {"type": "local"},
    ("ConfigurationUpdate", "reasoning"): {"effort": "low"},
    ("ConfigurationUpdate", "text"): {"format": {"type": "text"}},
    ("Response", "moderation"): {
        "input": {"type": "error", "code": "c", "message": "m"},
        "output": {"type": "error", "code": "c", "message": "m"},
    },
    ("Response", "prompt_cache_options"): {"mode": "implicit", "ttl": "30m"},
    ("Response", "prompt_cache_diagnostics"): {"type": "cache_hit"},
    ("Response", "tool_usage"): {
        "image_gen": {
            "input_tokens": 1, "output_tokens": 1, "total_tokens": 2,
            "input_tokens_details": {"image_tokens": 0, "text_tokens": 1},
        },
        "web_search": {"num_requests": 1},
    },
    ("Response", "image"): {"context_compression": "enabled"},
    ("Response", "access_programs"): {"cyber": "standard"},
    ("SteerPending", "required_input"): [{"type": "function_call_output", "call_id": "call_1", "name": "f"}],
    ("FailedSteer", "input"): "hello",
}  # fmt: skip


def list_members(union: Any) -> list[type[Struct]]:
    """Return the structs of a union."""
    return [cls for cls in get_args(union) if isinstance(cls, type) and issubclass(cls, Struct)]


def get_tag(cls: type[Struct]) -> str:
    return str(cls.__struct_config__.tag)


def make_minimal(cls: type[Struct]) -> dict[str, Any]:
    """Return JSON with only the required fields."""
    return _make_struct(_get_struct_info(cls), full=False)


def make_full(cls: type[Struct]) -> dict[str, Any]:
    """Return JSON with every field."""
    return _make_struct(_get_struct_info(cls), full=True)


def _get_struct_info(cls: type[Struct]) -> types.StructType:
    info = types.type_info(cls)
    assert isinstance(info, types.StructType)
    return info


def _make_struct(info: types.StructType, *, full: bool) -> dict[str, Any]:
    sample: dict[str, Any] = {} if info.tag is None else {str(info.tag_field): info.tag}
    for field in info.fields:
        if full or field.required:
            fixed = _FIXED_VALUES.get((info.cls.__name__, field.name))
            sample[field.encode_name] = _make_value(field.type, full=full) if fixed is None else fixed
    return sample


def _make_value(kind: types.Type, *, full: bool) -> Any:
    match kind:
        case types.Metadata():
            return _make_value(kind.type, full=full)
        case types.UnionType():
            return _make_value(
                next(member for member in kind.types if not isinstance(member, types.NoneType)), full=full
            )
        case types.StructType():
            return _make_struct(kind, full=full)
        case types.ListType():
            return [_make_value(kind.item_type, full=full)] if full else []
        case types.DictType():
            return {"key": _make_value(kind.value_type, full=full)} if full else {}
        case types.LiteralType():
            return kind.values[0]
        case types.BoolType():
            return True
        case types.IntType():
            return max(1, kind.ge or 0)
        case types.FloatType():
            return 0.5
        case types.AnyType():
            return "anything"
        case types.StrType():
            return "text"
    raise AssertionError(f"no example for {kind}")
