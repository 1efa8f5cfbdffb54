"""How many wrong keys came from each address of late. Pure; callers pass the time.

Beyond MOST in a minute, further ones from there are answered 429. Only wrong keys get here, so a right one from the
same address is never refused: many users may sit behind one. The table forgets the address that was quiet longest.
"""

from collections import OrderedDict
from math import ceil
from typing import Final

from ..actors.gateway.quotas import Bucket
from ..protocol.errors import ApiError

MOST: Final = 10  # in a minute, of an IPv4 address or the first 64 bits of an IPv6 one
ADDRESSES: Final = 4096  # some 300 bytes each


class WrongKeys:
    def __init__(self) -> None:
        self._tries: OrderedDict[str, Bucket] = OrderedDict()

    def refusal(self, address: str | None, problem: str, now: float) -> ApiError:
        """The answer to a wrong key. `address` None: a Unix socket, where only the system's own users are."""
        if address is None:
            return ApiError("invalid_api_key", problem)
        tries = self._tries.get(address)
        if tries is None:
            if len(self._tries) >= ADDRESSES:
                self._tries.popitem(last=False)
            tries = self._tries[address] = Bucket(MOST)
        self._tries.move_to_end(address)
        if wait := tries.wait(now):
            seconds = max(ceil(wait), 1)
            message = f"{problem} Too many wrong keys came from this address; try again in {seconds} s."
            return ApiError("too_many_wrong_keys", message, retry_after=seconds)
        tries.take(1, now)
        return ApiError("invalid_api_key", problem)
