"""The unlearning methods, one file each, and their losses as functions of logits, labels and settings."""

from residuum.training.losses import mean_kl, mean_nll, sequence_nll
from residuum.training.methods.altpo import AltPO
from residuum.training.methods.base import METHODS, Method, Side, make_method, methods
from residuum.training.methods.graddiff import GradDiff, graddiff_loss
from residuum.training.methods.idkdpo import IdkDPO, dpo_loss
from residuum.training.methods.idknll import IdkNLL
from residuum.training.methods.npo import NPO, npo_loss
from residuum.training.methods.rmu import RMU, control_vector, rmu_loss
from residuum.training.methods.simnpo import SimNPO, simnpo_loss
from residuum.training.methods.undial import UNDIAL, undial_loss

__all__ = [
    "METHODS",
    "NPO",
    "RMU",
    "UNDIAL",
    "AltPO",
    "GradDiff",
    "IdkDPO",
    "IdkNLL",
    "Method",
    "Side",
    "SimNPO",
    "control_vector",
    "dpo_loss",
    "graddiff_loss",
    "make_method",
    "mean_kl",
    "mean_nll",
    "methods",
    "npo_loss",
    "rmu_loss",
    "sequence_nll",
    "simnpo_loss",
    "undial_loss",
]
