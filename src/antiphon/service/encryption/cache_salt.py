"""Cache salts separate the prefix caches of tenants: the time to the first token must not reveal other tenants'
prompts.

A client's own salt also separates it from others of its tenant. It is hashed with the tenant, so it cannot be reused by
another tenant.
"""

from hashlib import blake2b

DEFAULT_TENANT = "default"  # tenant of a server without tenants; its prompts share a cache


def make_salt(tenant: str, client_salt: str | None = None) -> str | None:
    """Return the salt; None means that the cache is shared."""
    if tenant == DEFAULT_TENANT and client_salt is None:
        return None
    name = tenant.encode()
    material = b"%d:%b%b" % (
        len(name),
        name,
        b"" if client_salt is None else b":" + client_salt.encode("utf-8", "surrogatepass"),
    )
    return blake2b(material, digest_size=16, person=b"antiphon-salt").hexdigest()
