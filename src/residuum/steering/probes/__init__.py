"""Probes of unlearned models: does one direction bring the knowledge back?

    questions.py   the rows a probe works on: halves of the forget set, retain rows, neutral ones
    measures.py    how much of the truth steered answers contain
    directions.py  the probes: which direction, and what is done with it
    attack.py      one probe on one model: chosen on one half, reported on the other
    run.py         against random directions and the model that never knew

Success proves that knowledge is left; failure proves nothing.
"""

from __future__ import annotations

from residuum.steering.probes.directions import PROBES, probes
from residuum.steering.probes.run import ProbeConfig, run_probe

__all__ = ["PROBES", "ProbeConfig", "probes", "run_probe"]
