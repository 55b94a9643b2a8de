"""JSON Schema validators of the library jsonschema_rs, for drafts 2020-12, 7 and 4.

The library takes about 9 MiB and most servers never receive a schema, so this module is imported by the first request
that contains one (schemas/vetting.py, schemas/schema_check.py). Only the fake engine also uses the library.
"""

from functools import lru_cache
from typing import Any, Final

import jsonschema_rs

# A schema that is valid in any draft is accepted; errors are reported for the newest one.
_META_VALIDATORS: Final = (
    jsonschema_rs.Draft202012Validator({"$ref": "https://json-schema.org/draft/2020-12/schema"}, offline=True),
    jsonschema_rs.Draft7Validator(
        {"$ref": "http://json-schema.org/draft-07/schema#"}, offline=True, validate_formats=False
    ),
    jsonschema_rs.Draft4Validator(
        {"$ref": "http://json-schema.org/draft-04/schema#"}, offline=True, validate_formats=False
    ),
)
_MAX_BACKTRACKS: Final = 100_000  # backtracking steps of a pattern
# Pairs of the weight of a pattern and the bytes that it may compile to. Compiling the largest takes 10 ms.
_WEIGHT_SIZES: Final = ((1, 128 * 1024), (8, 1024 * 1024))


def complaint(schema: Any) -> str:
    """Return why the schema is invalid; empty if it is valid."""
    if any(meta_validator.is_valid(schema) for meta_validator in _META_VALIDATORS):
        return ""
    error = next(iter(_META_VALIDATORS[0].iter_errors(schema)))
    pointer = "/".join(str(step) for step in error.instance_path)
    return f"{error.message[:200]} (at '/{pointer[:200]}')"


@lru_cache(maxsize=1024)
def weigh_pattern(pattern: str) -> int:
    """Return how much the pattern weighs; 0 if it does not compile or is too big."""
    return next((weight for weight, size in _WEIGHT_SIZES if _compiles(pattern, size)), 0)


def _compiles(pattern: str, size: int) -> bool:
    """Return whether the pattern compiles to at most `size` bytes."""
    options = jsonschema_rs.FancyRegexOptions(backtrack_limit=_MAX_BACKTRACKS, size_limit=size, dfa_size_limit=size)
    try:
        jsonschema_rs.Draft202012Validator({"pattern": pattern}, offline=True, pattern_options=options)
    except jsonschema_rs.ValidationError:
        return False
    return True


def validator(schema: Any) -> Any:
    options = jsonschema_rs.FancyRegexOptions(backtrack_limit=_MAX_BACKTRACKS)
    return jsonschema_rs.validator_for(schema, offline=True, pattern_options=options)
