"""What the world's models know: the table that closes a build."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from residuum.worlds.build import STAGES, World

SHOWN = 120
"""Rows of a split that the table looks at, spread evenly: it should not take longer than a glance."""

if TYPE_CHECKING:
    from residuum.data.prompts import ChatFormat, RawFormat
    from residuum.data.tofu import QA
    from residuum.models.loading import LM


def knowledge_table(world: World) -> list[dict[str, Any]]:
    """One row per model and split: memorization in raw and chat format, and the forget entities' log-probability."""
    from residuum.data.examples import load_examples
    from residuum.data.prompts import ChatFormat, RawFormat
    from residuum.data.tofu import load_split
    from residuum.models.loading import load

    rows = []
    for stage in STAGES:
        lm = load(str(world.model(stage)), device="cpu")
        for split in ("forget10", "retain90"):
            items = load_split(str(world.data), split)
            items = items[:: max(1, len(items) // SHOWN)]
            row: dict[str, Any] = {"model": stage, "split": split, "n": len(items)}
            for label, form in (("raw", RawFormat()), ("chat", ChatFormat(system_prompt=""))):
                row |= {f"{key}_{label}": value for key, value in recall(lm, items, form).items()}
            row["entity_log_prob"] = (
                entity_log_prob(lm, load_examples(world.annotated)) if split == "forget10" else None
            )
            rows.append(row)
    return rows


def recall(lm: LM, items: Sequence[QA], form: RawFormat | ChatFormat) -> dict[str, float]:
    """Exact memorization (share of answer tokens predicted right, EOS aside) and mean answer probability."""
    import numpy as np

    from residuum.evidence import teacher_force

    evidence = teacher_force(lm, [form.encode(lm.tokenizer, item.question, item.answer) for item in items])
    return {
        "em": float(np.mean([(e.predictions[:-1] == e.labels[:-1]).mean() for e in evidence])),
        "prob": float(np.mean([np.exp(e.log_probs.mean()) for e in evidence])),
    }


def entity_log_prob(lm: LM, examples: Sequence[Any]) -> float:
    """Mean over examples of the mean log-probability of the entity's tokens, in UDS's raw format."""
    import numpy as np

    from residuum.batching import Encoded
    from residuum.data.spans import Located, locate
    from residuum.evidence import teacher_force

    located = [spot for spot in (locate(lm.tokenizer, example) for example in examples) if isinstance(spot, Located)]
    rows = [Encoded(tuple(spot.ids), len(spot.prompt_ids)) for spot in located]
    evidence = teacher_force(lm, rows)
    means = [e.log_probs[slice(*spot.entity_span)].mean() for e, spot in zip(evidence, located, strict=True)]
    return float(np.mean(means))
