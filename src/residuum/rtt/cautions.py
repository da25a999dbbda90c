"""When not to take the numbers of RTT at their word."""

from __future__ import annotations

from math import sqrt

from residuum.rtt.summary import Summary

SATURATED = 0.99


def cautions(
    summary: Summary,
    *,
    items: int | None,
    retain: tuple[float | None, float | None] = (None, None),
    tolerance: float = 0.05,
) -> list[str]:
    """Sentences about what makes this summary hard to read.

    Args:
        summary: of one unlearned model.
        items: questions behind each mean, if known.
        retain: accuracy on what should be kept, of the base and of the unlearned model.
        tolerance: how much of it may be lost.
    """
    found = []
    chance = summary.chance
    noise = 2 * sqrt(chance * (1 - chance) / items) if items else None
    if noise is not None and summary.unlearned is not None and summary.unlearned < chance - noise:
        found.append(
            f"A is {summary.unlearned:.3f}, below chance ({chance:.3f}) by more than noise: avoiding the right answer"
            " takes knowing it."
        )
    if summary.c.accuracy is not None and summary.c.accuracy >= SATURATED:
        found.append(f"C is saturated ({summary.c.accuracy:.3f}): B / C is no more than B.")
    control = summary.n.accuracy_nested if summary.n.accuracy_nested is not None else summary.n.accuracy
    if noise is not None and control is not None and control > chance + noise:
        found.append(
            f"N is {control:.3f}, above chance ({chance:.3f}) by more than noise: T teaches something about V, or the"
            " naive model saw the facts. Read the N-adjusted recovery."
        )
    before, after = retain
    if before is not None and after is not None and before - after > tolerance:
        found.append(f"unlearning cost {before - after:.3f} of retain accuracy ({before:.3f} to {after:.3f}).")
    if summary.status != "complete":
        found.append(f"the sweep is not complete: {summary.status}.")
    return found
