"""Results of `triolet bench peers` as JSON, as tables for a terminal, and as a page."""

from collections.abc import Iterable

from msgspec import Struct
from rich.console import Console

from ..machine import QUIET, Machine
from ..table import Rows, markdown_table, terminal_table
from .accuracy import Quality, TokenCheck
from .cases import Case
from .exact import ExactMatch
from .ratios import Measured, Median, Ratio

ALL = "the best of ours / the best peer"


class ComparedEngine(Struct, frozen=True, kw_only=True):
    name: str
    ours: bool
    bits: int  # of a weight
    what: str
    versions: dict[str, str]


class Comparison(Struct, frozen=True, kw_only=True):
    """All results, including every repetition (`rows`)."""

    model: str
    parameters: int
    date: str
    command: str
    machine: Machine
    versions: dict[str, str]
    threads: int
    rounds: int
    seconds: float
    load_averages: tuple[float, ...]  # before the first turn
    cases: tuple[Case, ...]
    engines: tuple[ComparedEngine, ...]
    medians: tuple[Median, ...]
    against_best: tuple[Ratio, ...]
    against_each: tuple[Ratio, ...]
    best_against_best: tuple[Ratio, ...]
    rows: tuple[Measured, ...]
    read_speeds: tuple[float, ...] = ()  # of memory, in bytes per second, in each turn
    token_bytes: dict[str, float] = {}  # that one sequence's token reads, of each of ours: weights and its cache
    reading_shares: tuple[Median, ...] = ()
    quality: tuple[Quality, ...] = ()
    tokens: tuple[TokenCheck, ...] = ()
    exact: tuple[ExactMatch, ...] = ()


def speed_table(result: Comparison) -> Rows:
    """Header and rows: tokens/s of every engine, ours first."""
    found = {(row.engine, row.case): row for row in result.medians}
    rows = [("engine", "bits", *(case.title for case in result.cases))]
    for engine in sorted(result.engines, key=lambda engine: not engine.ours):
        cells = [f"{found[engine.name, case.name].median:,.0f}" for case in result.cases]
        rows.append((f"Triolet {engine.name}" if engine.ours else engine.name, str(engine.bits), *cells))
    return rows


def ratio_table(result: Comparison) -> Rows:
    """Header and rows: each variant over the best peer of equal or fewer bits, then the best over the best."""
    names = list(dict.fromkeys(ratio.ours for ratio in result.against_best))
    groups = [(f"Triolet {name}", [each for each in result.against_best if each.ours == name]) for name in names]
    if result.best_against_best:
        groups.append((ALL, list(result.best_against_best)))
    rows = [("ours", *(case.title for case in result.cases))]
    for label, ratios in groups:
        by_case = {ratio.case: ratio for ratio in ratios}
        pair = label == ALL
        rows.append((label, *(_cell(by_case.get(case.name), pair) for case in result.cases)))
    return rows


def _cell(ratio: Ratio | None, pair: bool) -> str:
    if ratio is None:
        return "–"
    who = f"{ratio.ours} / {ratio.theirs}" if pair else ratio.theirs
    return f"{ratio.median:.2f}× ({ratio.lowest:.2f}–{ratio.highest:.2f}) {who}"


def reading_table(result: Comparison) -> Rows:
    """Header and rows: what decoding one sequence reads, beside plain reading with the same threads."""
    rows = [("ours", "MB a token", "tokens/s", "share of plain reading")]
    found = {(row.engine, row.case): row for row in result.medians}
    for each in result.reading_shares:
        share = f"{each.median:.0%} ({each.lowest:.0%}–{each.highest:.0%})"
        size, speed = result.token_bytes[each.engine] / 1e6, found[each.engine, each.case].median
        rows.append((f"Triolet {each.engine}", f"{size:,.0f}", f"{speed:,.1f}", share))
    return rows


def quality_table(result: Comparison) -> Rows:
    rows = [("variant", "perplexity", "of float32", "KL, nats a token (p99)", "same first choice")]
    rows += [
        (
            each.name, f"{each.perplexity:.4g}", f"{each.reference_perplexity:.4g}",
            f"{each.kl_mean:.2g} ({each.kl_p99:.2g})", f"{each.same_choice:.2%}",
        )
        for each in result.quality
    ]  # fmt: skip
    return rows


def exact_table(result: Comparison) -> Rows:
    rows = [("variant", "instances", "exact match", "least family")]
    for each in result.exact:
        family, least = min(each.families.items(), key=lambda pair: pair[1])
        share = f"{each.right / each.instances:.2%}"
        rows.append((each.name, f"{each.instances:,}", share, f"{least:.0%} ({family})"))
    return rows


def token_table(result: Comparison) -> Rows:
    rows = [("variant", "tokens", "equal to the runner's pass", "equal to the definition's", "worst gap")]
    rows += [
        (each.name, str(each.tokens), str(each.equal_runner), str(each.equal_definition), f"{each.worst_gap:.2g} σ")
        for each in result.tokens
    ]
    return rows


def notes(result: Comparison) -> Iterable[str]:
    """What a reader must know besides the figures."""
    disturbed = [row for row in result.rows if row.busy > QUIET]
    if disturbed:
        worst = max(row.busy for row in disturbed)
        turns = len({(row.turn, row.engine) for row in disturbed})
        yield f"Disturbed: before {turns} runs others took more than {QUIET:.0%} of the cores, at most {worst:.0%}."
    yield from {each.note: None for each in result.quality if each.note}
    if result.tokens:
        yield (
            "Token ids: greedy answers of the served engine, four prompts of mixed lengths at once, against one pass "
            "of the CPU runner over prompt and answer (same weights; must be equal), and against the decoder's "
            "definition in plain numpy on the same rounded weights but unrounded activations (the gap is how far a "
            "token's logit is under the definition's largest, in deviations of that row's logits)."
        )


def conditions(result: Comparison) -> str:
    about = result.machine
    return (
        f"{result.model} ({result.parameters / 1e6:,.0f} M parameters), {result.date}: {about.cpu}, "
        f"{', '.join(about.instructions)}; {result.threads} threads on {about.cores} cores, {about.memory_gib} GiB, "
        f"{about.system}. Medians of {result.rounds} turns, engines in turn, the order reversed every other turn; load "
        f"average before: {', '.join(str(load) for load in result.load_averages)}."
    )


def page(result: Comparison) -> str:
    """Markdown."""
    parts = [f"# {result.model}: Triolet beside other engines", conditions(result), f"    {result.command}"]
    parts += ["Tokens/s:", markdown_table(speed_table(result))]
    if result.best_against_best:
        parts += ["Ours over the best peer of equal or fewer bits, median of the turns (lowest–highest):"]
        parts += [markdown_table(ratio_table(result))]
    if result.reading_shares:
        speed = f"{min(result.read_speeds) / 1e9:.1f}–{max(result.read_speeds) / 1e9:.1f} GB/s"
        parts += [f"Decoding one sequence, beside reading memory in order ({speed} in the turns):"]
        parts += [markdown_table(reading_table(result))]
    if result.quality:
        parts += ["What the precision costs:", markdown_table(quality_table(result))]
    if result.exact:
        parts += ["The bundled model's held-out instances, answered greedily:", markdown_table(exact_table(result))]
    if result.tokens:
        parts += ["Token ids beside the reference:", markdown_table(token_table(result))]
    parts += notes(result)
    versions = {engine.what: engine.versions for engine in result.engines if not engine.ours}
    lines = [f"- {what}: {', '.join(f'{k} {v}' for k, v in each.items())}" for what, each in versions.items()]
    ours = ", ".join(f"{name} {number}" for name, number in result.versions.items())
    parts += ["\n".join([f"- Triolet: {ours}", *lines])]
    return "\n\n".join(parts) + "\n"


def show(result: Comparison, console: Console) -> None:
    tables = [("tokens/s", speed_table(result))]
    if result.best_against_best:
        tables.append(("ours over the best peer of equal or fewer bits", ratio_table(result)))
    if result.reading_shares:
        tables.append(("decoding one sequence, beside reading memory in order", reading_table(result)))
    if result.quality:
        tables.append(("what the precision costs", quality_table(result)))
    if result.exact:
        tables.append(("the bundled model's held-out instances", exact_table(result)))
    if result.tokens:
        tables.append(("token ids beside the reference", token_table(result)))
    for title, rows in tables:
        styles = ["bold" if row[0].startswith(("Triolet", ALL)) else "" for row in rows[1:]]
        console.print(terminal_table(rows, title=title, styles=styles))
    for note in notes(result):
        console.print(note)
