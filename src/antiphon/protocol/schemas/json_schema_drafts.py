"""JSON Schema's dialects, as the library has them: nothing else uses it, but for the fake engine.

It takes some 9 MiB, and most servers never see a schema: so this is loaded by the first request that holds one
(schemas.py, instances.py).
"""

from typing import Any, Final

import jsonschema_rs

# The newest one is that whose complaint is shown; what is valid in an older one is fit too.
_DIALECTS: Final = (
    jsonschema_rs.Draft202012Validator({"$ref": "https://json-schema.org/draft/2020-12/schema"}, offline=True),
    jsonschema_rs.Draft7Validator(
        {"$ref": "http://json-schema.org/draft-07/schema#"}, offline=True, validate_formats=False
    ),
    jsonschema_rs.Draft4Validator(
        {"$ref": "http://json-schema.org/draft-04/schema#"}, offline=True, validate_formats=False
    ),
)
_STEPS: Final = 100_000  # that a pattern may go back


def complaint(schema: Any) -> str:
    """Why it is none; nothing if it is one."""
    if any(dialect.is_valid(schema) for dialect in _DIALECTS):
        return ""
    error = next(iter(_DIALECTS[0].iter_errors(schema)))
    place = "/".join(str(step) for step in error.instance_path)
    return f"{error.message[:200]} (at '/{place[:200]}')"


def compiles(pattern: str, size: int) -> bool:
    """Does it, to so many bytes at most?"""
    options = jsonschema_rs.FancyRegexOptions(backtrack_limit=_STEPS, size_limit=size, dfa_size_limit=size)
    try:
        jsonschema_rs.Draft202012Validator({"pattern": pattern}, offline=True, pattern_options=options)
    except jsonschema_rs.ValidationError:
        return False
    return True


def validator(schema: Any) -> Any:
    """Of instances of a schema that was vetted."""
    options = jsonschema_rs.FancyRegexOptions(backtrack_limit=_STEPS)
    return jsonschema_rs.validator_for(schema, offline=True, pattern_options=options)
