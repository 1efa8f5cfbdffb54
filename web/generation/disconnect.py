"""`disconnect_policy` of a request: what becomes of its answer when its client's connection ends."""

import re
from math import inf
from typing import Final

from ...protocol.errors import ApiError
from ...protocol.settings import LimitSettings

PARAM: Final = "disconnect_policy"
_GRACE: Final = re.compile(r"grace:([0-9]{1,9}(?:\.[0-9]{1,9})?)")


def waiting_seconds(policy: str | None, limits: LimitSettings, *, stream: bool | None) -> float | None:
    """How long an answer goes on without a client: None: `cancel`, infinity: `detach`. Raises ApiError (400)."""
    if policy is None or policy == "cancel":
        return None
    found = _GRACE.fullmatch(policy)
    seconds = inf if policy == "detach" else float(found[1]) if found else 0.0
    longest = limits.max_resume_seconds
    if not longest:
        problem = "this server keeps no answers (--max-resume-seconds 0); leave it out"
    elif not seconds or longest < seconds < inf:
        problem = f"send cancel, detach or grace:SECONDS, above 0 and at most {longest:g} (--max-resume-seconds)"
    elif not stream:
        problem = f"{policy} is for streams, which can be resumed; add stream: true, or leave it out"
    else:
        return seconds
    raise ApiError("invalid_value", f"{PARAM}: {problem}.", param=PARAM)
