"""What a model says about known texts: one teacher-forced pass and one generation pass per model and split.

Every output metric is a pure function of this evidence; a new metric needs no new pass.

    tokens.py     what a model thinks of each labelled token, and where an answer ends
    forcing.py    the teacher-forced pass
    rows.py       questions and answers as ids: all answers to one question side by side
    collect.py    evidence through the run store, so that nothing is read twice
    gradients.py  gradient norms, and Fisher information of the decoder blocks
    states.py     hidden states of the rows that predict an entity: CKA and the logit lens
    fluency.py    the classifier that tells text from gibberish
"""

from __future__ import annotations

from residuum.evidence.forcing import MASK_MODES, MaskMode, teacher_force
from residuum.evidence.tokens import TokenEvidence

__all__ = ["MASK_MODES", "MaskMode", "TokenEvidence", "teacher_force"]
