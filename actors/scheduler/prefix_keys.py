"""Names of KV block contents: a chain of keyed hashes, so that equal names mean equal prefixes of one namespace.

A block's key covers the key before it and its own token ids; the chain starts from tenant, adapter, cache
salt and determinism (on a GPU a strict request may not read what a default one computed: its last bits are others).
Nobody outside the process can compute or guess a key: the hash is keyed with a secret drawn at start. So a client can
neither collide with another's blocks nor learn from timing whether another tenant sent a text.
"""

from array import array
from collections.abc import Sequence
from hashlib import blake2b

Key = bytes

KEY_BYTES = 16  # with a secret key, 2**64 blocks until a collision is likely; a pool holds at most some millions


class PrefixKeys:
    """Makes keys under one secret."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret

    def root(self, tenant: str, adapter: str, cache_salt: str, determinism: str) -> Key:
        """Where the chain of a namespace starts. Each part is length-prefixed: ("ab", "c") is not ("a", "bc")."""
        digest = blake2b(digest_size=KEY_BYTES, key=self._secret, person=b"root")
        for part in (tenant, adapter, cache_salt, determinism):
            data = part.encode("utf-8", "surrogatepass")
            digest.update(len(data).to_bytes(8, "little"))
            digest.update(data)
        return digest.digest()

    def extend(self, parent: Key, tokens: Sequence[int]) -> Key:
        """The key of a full block that holds `tokens` after the prefix named `parent`."""
        digest = blake2b(parent, digest_size=KEY_BYTES, key=self._secret, person=b"block")
        digest.update(array("I", tokens).tobytes())
        return digest.digest()
