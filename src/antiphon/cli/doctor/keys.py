"""Who is let in: keys that are given, keys in the store, and nobody without one where others can come."""

from time import time

from antiphon.cli.doctor.findings import Finding, fine, warning, wrong
from antiphon.config import Config
from antiphon.config.key_settings import given_keys
from antiphon.errors import AntiphonError, StartupError
from antiphon.stores.registry import make_store, named

_SHORT = 16
_OTHERS = 0o007  # rights of those who are neither its owner nor of its group


async def keys(config: Config) -> list[Finding]:
    given = given_keys(config)
    kept, known = await _stored(config)
    found = [_judged(config, len(given), kept, known)]
    if any(len(one.key) < _SHORT for one in given):
        found.append(
            warning(f"A key has fewer than {_SHORT} characters, and can be guessed.", "openssl rand -hex 24 makes one.")
        )
    file = config.api_key_file
    if file is not None and file.stat().st_mode & _OTHERS:
        found.append(warning(f"Everybody on this machine may read {file}.", f"chmod o= {file}"))
    return found


def _judged(config: Config, given: int, kept: int, known: bool) -> Finding:
    """`known`: the store could be asked."""
    if given or kept:
        return fine(f"{given} given, {kept} in the store: nobody comes in without one.")
    if config.on_loopback:
        return fine("None, and everybody on this machine is let in; nobody else can come.")
    doubt = "" if known else ", and the store could not be asked for any"
    return wrong(
        f"None is given{doubt}, and {config.host} lets others in than this machine.",
        "Make one with `antiphon keys create`, give one with --api-key, or listen on 127.0.0.1.",
    )


async def _stored(config: Config) -> tuple[int, bool]:
    """How many in the store let anybody in, and whether it could be asked. One that is not up to date is left alone."""
    try:
        if named(config.store_place)[0] == "memory":
            return 0, True
        store = make_store(config.store_place, config.store_ttl)
        schema = await store.schema()
        if schema.current == 0:
            return 0, True
        if schema.pending or schema.current > schema.newest:
            return 0, False
        try:
            await store.open()
            rows = await store.api_keys()
        finally:
            await store.close()
    except (AntiphonError, StartupError, OSError):  # the line about the store says so
        return 0, False
    now = time()
    return sum(row.revoked is None and (row.expires is None or row.expires > now) for row in rows), True
