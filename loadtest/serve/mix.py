"""The mix of clients: tenants with keys, priorities, and the shares that cancel or read slowly. Pure.

On the command line: `--tenant acme,key=K1,weight=3,priority=1`, `--priorities 0:9,10:1` (one request in ten has
priority 10), `--cancel 0.1@16` (one client in ten leaves after 16 pieces), `--slow 0.05@20` (one in twenty reads 20
pieces a second).
"""

from collections.abc import Sequence
from random import Random
from typing import Literal

from msgspec import Struct

Behaviour = Literal["ordinary", "cancels", "slow"]


class Tenant(Struct, frozen=True, kw_only=True):
    name: str
    key: str | None = None
    weight: float = 1.0
    priority: int | None = None  # None: drawn from the mix's priorities


class MixShare(Struct, frozen=True):
    """A share of the clients, and the number for what they do."""

    share: float
    value: float


class Mix(Struct, frozen=True, kw_only=True):
    tenants: tuple[Tenant, ...] = (Tenant(name="default"),)
    priorities: tuple[tuple[int, float], ...] = ()  # priority, weight
    cancel: MixShare = MixShare(0.0, 0.0)  # leaves after so many pieces
    slow: MixShare = MixShare(0.0, 0.0)  # reads so many pieces a second


class Client(Struct, frozen=True, kw_only=True):
    """The behaviour of one conversation's client, for all its turns."""

    tenant: Tenant
    priority: int | None
    behaviour: Behaviour


class BadMix(ValueError):
    """The text is not a valid part of a mix; the message shows what to write."""


def draw_client(mix: Mix, draw: Random) -> Client:
    tenant = draw.choices(mix.tenants, [each.weight for each in mix.tenants])[0]
    priority = tenant.priority
    if priority is None and mix.priorities:
        values, weights = zip(*mix.priorities, strict=True)
        priority = draw.choices(values, weights)[0]
    point = draw.random()
    behaviour: Behaviour = "ordinary"
    if point < mix.cancel.share:
        behaviour = "cancels"
    elif point < mix.cancel.share + mix.slow.share:
        behaviour = "slow"
    return Client(tenant=tenant, priority=priority, behaviour=behaviour)


def read_tenant(text: str) -> Tenant:
    name, *fields = (part.strip() for part in text.split(","))
    values: dict[str, str] = {}
    for field in fields:
        key, equals, value = field.partition("=")
        if key not in ("key", "weight", "priority") or not equals or key in values:
            raise BadMix(f"{text!r}: {field!r} is not one key=…, weight=… or priority=…")
        values[key] = value
    try:
        tenant = Tenant(
            name=name,
            key=values.get("key"),
            weight=float(values.get("weight", "1")),
            priority=int(values["priority"]) if "priority" in values else None,
        )
    except ValueError:
        raise BadMix(f"{text!r}: weight must be a number and priority a whole one") from None
    if not name or not tenant.weight > 0:
        raise BadMix(f"{text!r}: a tenant has a name and a weight above 0, as in acme,key=K,weight=3")
    if tenant.key is not None and not (tenant.key.isascii() and tenant.key.isprintable() and " " not in tenant.key):
        raise BadMix(f"{name}: a key is one word of visible ASCII characters")
    return tenant


def read_priorities(text: str) -> tuple[tuple[int, float], ...]:
    try:
        pairs = tuple((int(value), float(weight)) for value, weight in (each.split(":") for each in text.split(",")))
    except ValueError:
        raise BadMix(f"{text!r} is not PRIORITY:WEIGHT[,PRIORITY:WEIGHT…], as in 0:9,10:1") from None
    if any(not weight > 0 for _, weight in pairs):
        raise BadMix(f"{text!r}: weights must be above 0")
    return pairs


def read_share(text: str, least: float) -> MixShare:
    """`SHARE@VALUE`, where VALUE is at least `least`."""
    first, at, second = text.partition("@")
    try:
        share = MixShare(float(first), float(second) if at else least - 1)
    except ValueError:
        share = MixShare(-1.0, 0.0)
    if not (0 <= share.share <= 1 and share.value >= least):
        raise BadMix(f"{text!r} is not SHARE@NUMBER with a share from 0 to 1 and a number of {least:g} or more")
    return share


def check_shares(mix: Mix) -> None:
    if mix.cancel.share + mix.slow.share > 1:
        raise BadMix("--cancel and --slow together take more than all clients")
    names = [tenant.name for tenant in mix.tenants]
    if repeated := {name for name in names if names.count(name) > 1}:
        raise BadMix(f"two tenants are called {', '.join(sorted(repeated))}")


def names_of(tenants: Sequence[Tenant]) -> str:
    return ", ".join(f"{tenant.name} ×{tenant.weight:g}" for tenant in tenants)
