"""The smallest valid instance of a JSON schema; see `instance.py`."""

from antiphon.engines.fake.schema_instance.instance import smallest_instance

__all__ = ["smallest_instance"]
