"""The smallest valid instance of a JSON schema; see instance.py."""

from antiphon.engines.fake.schema_instance.instance import smallest

__all__ = ["smallest"]
