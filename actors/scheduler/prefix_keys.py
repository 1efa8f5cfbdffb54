"""Names of KV block contents: a chain of keyed hashes. Equal names mean equal prefixes in the same namespace.

A block's key covers the previous block's key and its own token ids. The chain starts from tenant, adapter, cache salt
and determinism: on a GPU a strict request must not read a default one's KV, which has other last bits. An adapter
counts by its number in the worker, which stands for one reading of its files. The hash is keyed with a secret drawn at
start, so nobody outside the process can compute or guess a key. A client can neither collide with another's blocks nor
learn from timing whether another tenant sent a text.
"""

from array import array
from collections.abc import Sequence
from hashlib import blake2b

from ...protocol.settings import BLOCK_SIZE

Key = bytes

KEY_BYTES = 16  # with a secret key, 2**64 blocks until a collision is likely; a pool holds at most some millions


class PrefixKeys:
    """Makes keys with one secret."""

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


class SharedPrompt:
    """A prompt's tokens and the keys of its full blocks, for all choices that continue it."""

    __slots__ = ("_keys", "_root", "choices", "extend", "full_blocks", "tokens")

    def __init__(self, tokens: tuple[int, ...], choices: int, root: Key, keys: PrefixKeys) -> None:
        self.tokens = tokens
        self.choices = choices  # how many continue it
        self.full_blocks = len(tokens) // BLOCK_SIZE
        self.extend = keys.extend
        self._root = root
        self._keys: list[Key] = []  # made when first needed

    def key(self, block: int) -> Key:
        """The name of its full block number `block`; of block -1, the root of its namespace."""
        keys = self._keys
        while len(keys) <= block:
            start = len(keys) * BLOCK_SIZE
            keys.append(self.extend(keys[-1] if keys else self._root, self.tokens[start : start + BLOCK_SIZE]))
        return keys[block] if block >= 0 else self._root
