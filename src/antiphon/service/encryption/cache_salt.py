"""What keeps the prefix caches of engines apart: how fast an answer begins must not tell one tenant what another asked.

A client's own salt keeps it apart from others of its tenant. It is mixed with the tenant, so nobody can take another's.
"""

from hashlib import blake2b

TENANT = "default"  # of a server whose clients are all one; their prompts may share a cache


def salt(tenant: str, own: str | None = None) -> str | None:
    """None: share with everybody."""
    if tenant == TENANT and own is None:
        return None
    name = tenant.encode()
    mixed = b"%d:%b%b" % (len(name), name, b"" if own is None else b":" + own.encode("utf-8", "surrogatepass"))
    return blake2b(mixed, digest_size=16, person=b"antiphon-salt").hexdigest()
