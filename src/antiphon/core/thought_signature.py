"""The signature of a thinking block that is shown: a checksum of its text, behind a name by which we know it again.

It is no secret and no proof: it only shows that a block comes back as it went out. Clients of Anthropic's API expect
one and send it back. A block that was signed elsewhere is taken for what it says.
"""

from hashlib import blake2b

_OURS = "antiphon-1-"


def sign(thought: str) -> str:
    digest = blake2b(thought.encode("utf-8", "surrogatepass"), digest_size=24, person=b"antiphon-thought")
    return _OURS + digest.hexdigest()


def was_changed(thought: str, signature: str) -> bool:
    """Did we sign something else?"""
    return signature.startswith(_OURS) and signature != sign(thought)
