"""The last of several programs to arrive does what needs the work of all: no second launch, and nobody waits."""

from __future__ import annotations

from .language import jit, tl


@jit
def is_last(counter, parts):
    """Counts this program, which has stored its part: whether all `parts` have. A counter is 0 before and after.

    The barrier orders the stores of all threads before the atomic of the one that counts. That is a release and an
    acquire for the whole GPU, and both are cumulative: the last program, behind the barrier with which its threads
    get the count, sees all that was stored before an earlier count. It must read the parts past L1 (.cg), which may
    hold what was there before.
    """
    tl.debug_barrier()
    last = tl.atomic_add(counter, 1, sem="acq_rel", scope="gpu") == parts - 1
    if last:
        tl.store(counter, 0)
    return last
