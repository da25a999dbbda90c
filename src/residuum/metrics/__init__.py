"""Output metrics and representation metrics: pure functions over evidence, each with its meaning beside it.

A new metric is one decorated function in one of these rooms:

    registry.py        the decorator, and what can be selected by name
    memorization.py    EM, ES, probabilities, truth ratios
    generation.py      ROUGE of what the model says by itself
    privacy.py         membership attacks, and how far they are from the retain model's
    utility.py         what must not be lost
    representation.py  CKA, logit lens, Fisher masks, UDS
    aggregate.py       the axes and the overall score
    scores.py          values, intervals, notes
    splits.py          which data a metric reads
    subject.py         one model and the evidence about it
    evaluation.py      what goes in and what comes out
    plan.py            what can be computed from what is given
    scoring.py         from evidence to scores
    evaluator.py       the same questions for one model after another
    evaluate.py        all of it as one function
    output.py          the run folders
    reference.py       the page that docs/metrics.md is
"""
