"""How steps stay short on a CPU while several tenants use it, so that no flood delays another's first token. Pure.

A tenant with few rows that was served least has its first token computed in a step without the others' rows, which get
the next step at the latest. Prompts get as many tokens as a step of LONGEST_STEP has room for, and no step is planned
behind another that takes longer than SHORT_STEP. All of this ends when one tenant has been alone for a while: figures
are in docs/performance.md. A GPU's steps take nearly the same with fewer rows, so there it would only cost.
"""

from itertools import chain
from math import inf
from typing import Final

from msgspec import structs

from ..supervisor.step_cost import TypicalCost
from .blocks import blocks_for
from .queues import Queues
from .sequence import Sequence
from .step_plan import StepLimits

LONGEST_STEP: Final = 0.01  # seconds
SHORT_STEP: Final = 0.002  # seconds
# The same for one tenant alone: its newcomer would wait for both. Without a step planned behind it the worker idles
# between two steps, for about 0.2 ms. A GPU needs the next step early, to launch it while the last one runs.
LONG_STEP: Final = 0.02  # seconds
LEAST_TOKENS: Final = 64  # of prompts in a step, beside its rows, however slow the model is
LINGER: Final = 10.0  # seconds without a second tenant
MEMORY: Final = 10.0  # seconds without a step
FEW: Final = 4  # times as many rows as a tenant's own are the others'


class Sharing:
    """What steps take, whether tenants share the worker, and whose turn it is then."""

    def __init__(self, max_steps_in_flight: int) -> None:
        self._most = max_steps_in_flight
        self.cost = TypicalCost()
        self.on_cpu = False
        self._last_seconds = 0.0  # of a step
        self._last_at = -inf
        self._until = -inf
        self._shared = False
        self._favoured = False  # the step that was planned last
        self._was_favoured = False  # the one before it

    def note_step(self, work: int, seconds: float, now: float) -> None:
        """A step is done."""
        self.cost.note(work, seconds)
        self._last_seconds, self._last_at = seconds, now

    def believes(self, now: float) -> bool:
        """Whether steps of late tell what the next one takes. Else one must be computed: after a slow one at a cold
        start nobody would be let in who brings a faster one.
        """
        return now - self._last_at < MEMORY

    def most_in_flight(self, queues: Queues, now: float) -> int:
        """Steps. Call it before each plan: it sees who uses the worker."""
        if sum(1 for tenant in queues.tenants.values() if tenant.rows or tenant.waiting) > 1:
            self._until = now + LINGER
        self._shared = self.on_cpu and now < self._until
        return 1 if self.on_cpu and self._last_seconds > (SHORT_STEP if self._shared else LONG_STEP) else self._most

    def limits(self, limits: StepLimits, queues: Queues) -> StepLimits:
        """The worker's limits with fewer tokens, for the next plan. A pooled text needs them all: it is read whole."""
        self._was_favoured, self._favoured = self._favoured, False
        if not self._shared:
            return limits
        rows = sum(1 for one in queues.running if one.remaining == 1)
        fitting = rows + max(self.cost.work_within(LONGEST_STEP) - rows, LEAST_TOKENS)
        if fitting >= limits.max_step_tokens or any(one.pooled for one in chain(queues.running, queues.waiting)):
            return limits
        return structs.replace(limits, max_step_tokens=int(fitting))

    def favoured(self, queues: Queues, budget: int, free_blocks: int) -> list[Sequence]:
        """The running sequences of a tenant that gets a step to itself, as it brings a first token; often none."""
        first = None if self._was_favoured or not self._shared else self._first(queues, budget, free_blocks)
        self._favoured = first is not None
        if first is None:
            return []
        tenant = queues.tenant_of(first)
        return [sequence for sequence in queues.running if queues.tenant_of(sequence) is tenant]

    @staticmethod
    def _first(queues: Queues, budget: int, free_blocks: int) -> Sequence | None:
        if not queues.several_tenants or not queues.running:
            return None
        least = min(tenant.served for tenant in queues.tenants.values() if tenant.rows)
        for sequence in reversed(queues.running):
            tenant = queues.tenant_of(sequence)
            few = tenant.rows * (FEW + 1) <= len(queues.running) and tenant.served <= least
            begins = sequence.computed < sequence.prompt_tokens and not sequence.generated
            fits = tenant.rows + sequence.remaining <= budget  # the step must not come out empty
            fits = fits and tenant.rows + blocks_for(sequence.remaining) <= free_blocks
            if few and begins and fits and sequence.live.credit > 0:
                return sequence
        return None
