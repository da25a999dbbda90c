"""The reference page of all metrics, made from the registry.

python -m residuum.metrics.reference > docs/metrics.md
"""

from __future__ import annotations

from inspect import getdoc
from itertools import groupby

from residuum.metrics.registry import Metric, all_metrics

_HEAD = """# Metrics
<!-- Made by `python -m residuum.metrics.reference > docs/metrics.md`; a test checks that it is current. -->

`residuum evaluate` asks a model everything once: one teacher-forced pass over each split, with all answers to a question
side by side, and one greedy generation. Every metric is a pure function of that evidence, comes with n, the number of
undefined items and a bootstrap 95 % interval over items, and says in which direction it reads. `mem`, `privacy`,
`utility` and `overall` are computed on the resamples of their parts, so that their intervals know which parts rest on the
same items.

Needs are written as the code has them: `forget.answers` is evidence about a split, `retain_model:mia_loss` another metric
of a reference model, a question mark means that it may be missing.
"""

_TAIL = """
## Reading them
- An attack's AUC below 0.25 is flagged: members stand out because they have become strange. That is over-unlearning, not
  privacy. Read AUCs against the retain model's (`s_mia_*`), which is not 0.5: the two sets differ.
- Two models with equal weights are flagged: the comparison is with itself.
- A row of which any answer is longer than the context is left out of its whole split, counted in `n_undefined` and said.
- Without the gibberish classifier `utility` is `model_utility`; `utility_parts` in every summary says which it was, and
  `utility_rel` divides like by like.
- With `--metrics all`, metrics whose reference model is not given are left out and named. Asked for by name, they are an
  error, which lists what can run without.
"""


def reference_page() -> str:
    """The page as Markdown."""
    metrics = [metric for _, metric in all_metrics().items()]
    order = list(dict.fromkeys(metric.category for metric in metrics))
    metrics.sort(key=lambda metric: order.index(metric.category))
    parts = [_HEAD]
    for category, own in groupby(metrics, key=lambda metric: metric.category):
        parts.append(f"\n## {category.capitalize() if category != 'uds' else 'UDS'}\n")
        parts += [_entry(same) for same in _alike(list(own))]
    return "".join(parts) + _TAIL


def _alike(metrics: list[Metric]) -> list[list[Metric]]:
    """Metrics that share their definition, together."""
    groups: dict[str, list[Metric]] = {}
    for metric in metrics:
        groups.setdefault(getdoc(metric.function) or metric.name, []).append(metric)
    return list(groups.values())


def _entry(metrics: list[Metric]) -> str:
    first = metrics[0]
    text = (getdoc(first.function) or "").split("\n\nArgs:")[0].split("\n\nReturns:")[0]
    low, high = (f"{end:g}" for end in first.range)
    direction = f"two-sided, ideal {first.ideal:g}" if first.ideal is not None else f"higher means {first.higher_means}"
    names = ", ".join(f"`{metric.name}`" for metric in metrics)
    needs = "; ".join(", ".join(f"`{need}`" for need in metric.needs) for metric in metrics)
    return f"\n### {names}\n{text}\n\n{low} to {high}, {direction}. Needs {needs}. {first.cite}.\n"


if __name__ == "__main__":
    print(reference_page(), end="")
