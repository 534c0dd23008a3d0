"""What does a plan say in words?"""

from llmhostd.evaluation.limit import GOOD, Limit
from llmhostd.evaluation.planning import Outlook, Plan
from llmhostd.evaluation.question import Answer
from llmhostd.evaluation.relief import Scarce
from llmhostd.evaluation.watching import Miss, NodeUse

HELPED = {
    Scarce.COMPUTE: "nodes twice as fast", Scarce.MEMORY: "twice the memory", Scarce.LOADING: "loads twice as fast",
}  # fmt: skip


def verdict(plan: Plan) -> str:
    """Who meets their SLO?"""
    answer = plan.as_it_is.answer
    short = [one for one in answer.models if one.attainment < GOOD]
    if not short:
        return (
            f"All {len(answer.models)} models keep their promises: {percent(answer.attainment)} of {answer.requests:,}."
        )
    named = ", ".join(str(one.model) for one in sorted(short, key=lambda one: one.attainment)[:3])
    more = f" and {len(short) - 3} more" if len(short) > 3 else ""
    return (
        f"{len(short)} of {len(answer.models)} models break promises ({named}{more}); "
        f"{percent(answer.attainment)} of {answer.requests:,} requests are answered in time."
    )


def breaking(outlook: Outlook) -> str:
    """What breaks first, and when?"""
    return " ".join(part for part in (_limit(outlook), _relief(outlook)) if part)


def _limit(outlook: Outlook) -> str:
    limit = outlook.limit
    if limit is None:
        return "" if outlook.relief else "Nothing breaks."
    if limit.broke is None:
        return f"Nothing breaks at {times(limit.speed)} this traffic, the most that was tried."
    if limit.held is None:
        return f"Even at {times(limit.speed)} this traffic promises are broken."
    return f"Up to {times(limit.speed)} this traffic ({limit.held.rate:.2g} requests/s) promises are kept."


def _relief(outlook: Outlook) -> str:
    relief = outlook.relief
    if relief is None:
        return ""
    helped = ", ".join(f"with {HELPED[scarce]} {percent(share)}" for scarce, share in relief.with_twice.items())
    use = "; ".join(describe_use(node) for node in relief.pressed.nodes[:4])
    what = f"{relief.breaks} breaks first".capitalize() if relief.breaks else "More of one thing alone does not help"
    at = f"at {times(relief.speed)} this traffic {percent(relief.pressed.attainment)} are met, {helped}"
    return f"{what}: {at}. There, {use}."


def buys(plan: Plan, outlook: Outlook) -> str:
    """What does a variant buy?"""
    before, after = plan.as_it_is.answer, outlook.answer
    points = 100 * (after.attainment - before.attainment)
    words = "the same promises kept" if abs(points) < 0.05 else f"{points:+.1f} points of promises kept"
    base, limit = plan.as_it_is.limit, outlook.limit
    if base is None or limit is None or outlook is plan.as_it_is:
        return words
    ratio = limit.speed / base.speed
    room = "no more room" if abs(ratio - 1) < 0.1 else f"room for {times(ratio)} the traffic"
    return f"{words}, {room}"


def holds(limit: Limit | None) -> str:
    """Up to how much traffic promises are kept."""
    if limit is None:
        return "-"
    if limit.held is None:
        return f"< {times(limit.speed)}"
    return times(limit.speed) if limit.broke else f">= {times(limit.speed)}"


def missed(one: dict[Miss, int]) -> str:
    """Counts of requests by how they were missed."""
    return ", ".join(f"{count:,} {how}" for how, count in one.items()) or "-"


def describe_use(node: NodeUse) -> str:
    """What a node did."""
    return (
        f"{node.node} computes {node.busy:.0%} of the time, loads {node.loading:.0%}, "
        f"holds {node.memory:.0%} of its memory"
    )


def percent(share: float) -> str:
    """`99.6 %`; never rounded up to 100."""
    shown = min(round(100 * share, 1), 99.9) if share < 1 else 100
    return f"{shown:g} %"


def times(factor: float) -> str:
    """`2.5x`."""
    return f"{factor:.2g}x"


def seconds(value: float | None) -> str:
    """`0.25 s`, or a dash."""
    return "-" if value is None else f"{value:.2f} s" if value < 10 else f"{value:.0f} s"


def total(answer: Answer) -> str:
    """The traffic."""
    return f"{answer.requests:,} requests, {answer.rate:.2g} per second"
