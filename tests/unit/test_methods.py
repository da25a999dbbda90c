"""Every loss against a plain computation written out here, token by token, in float64."""

from __future__ import annotations

import math
from dataclasses import fields

import pytest
import torch

from miniatures import miniature
from residuum.data.prompts import Encoded
from residuum.errors import UnknownName, UsageError
from residuum.models.anatomy import anatomy
from residuum.training.looking import look
from residuum.training.losses import mean_kl, mean_nll, sequence_nll
from residuum.training.methods import (
    METHODS,
    control_vector,
    dpo_loss,
    graddiff_loss,
    make_method,
    methods,
    npo_loss,
    rmu_loss,
    simnpo_loss,
    undial_loss,
)
from residuum.training.methods.base import Side

VOCAB, HIDDEN = 130, 12
TOLERANCE = {"abs": 1e-8, "rel": 0}

# Ragged prompts, answers and padding: (prompt, answer, padding) tokens of each row.
SHAPES = [(3, 4, 0), (2, 1, 4), (4, 2, 1)]
WINNERS = [(3, 1, 2), (2, 3, 1), (4, 2, 0)]


def labels_of(shapes, seed):
    generator = torch.Generator().manual_seed(seed)
    rows = [[-100] * p + torch.randint(0, VOCAB, (a,), generator=generator).tolist() + [-100] * g for p, a, g in shapes]
    return torch.tensor(rows)


def numbers(labels, seed, width=VOCAB):
    generator = torch.Generator().manual_seed(seed)
    return 2 * torch.randn(*labels.shape, width, generator=generator, dtype=torch.float64)


LABELS, WINNER_LABELS = labels_of(SHAPES, 1), labels_of(WINNERS, 2)
LOGITS, REFERENCE = numbers(LABELS, 3), numbers(LABELS, 4)
WINNER_LOGITS, WINNER_REFERENCE = numbers(WINNER_LABELS, 5), numbers(WINNER_LABELS, 6)
STATES, REFERENCE_STATES = numbers(LABELS, 7, HIDDEN), numbers(LABELS, 8, HIDDEN)


# --- the plain twin: lists and math only ------------------------------------------------------------------------------


def log_softmax(scores):
    top = max(scores)
    norm = top + math.log(sum(math.exp(s - top) for s in scores))
    return [s - norm for s in scores]


def label_positions(labels):
    """(row, position of the logits, label) of every labelled token."""
    table = labels.tolist()
    return [(r, t - 1, token) for r, row in enumerate(table) for t, token in enumerate(row) if t and token != -100]


def plain_sums(logits, labels):
    table = logits.tolist()
    sums, counts = [0.0] * len(labels), [0] * len(labels)
    for r, t, token in label_positions(labels):
        sums[r] -= log_softmax(table[r][t])[token]
        counts[r] += 1
    return sums, counts


def log_sigmoid(x):
    return -math.log1p(math.exp(-x)) if x > 0 else x - math.log1p(math.exp(x))


def mean(values):
    values = list(values)
    return sum(values) / len(values)


def plain_kl(reference, scores):
    p, q = log_softmax(reference), log_softmax(scores)
    return sum(math.exp(a) * (a - b) for a, b in zip(p, q, strict=True))


def plain_distances(states, target):
    """Per row and position the mean squared distance; the target is one vector or as many as states."""
    here, there = states.tolist(), target.tolist()
    single = target.ndim == 1
    return [
        [
            mean((a - b) ** 2 for a, b in zip(v, there if single else there[r][t], strict=True))
            for t, v in enumerate(row)
        ]
        for r, row in enumerate(here)
    ]


def plain_rmu(states, target, labels):
    """Sum of distances at labelled positions and their number, per row."""
    distances, table = plain_distances(states, target), labels.tolist()
    sums = [
        sum(d for d, token in zip(ds, row, strict=True) if token != -100)
        for ds, row in zip(distances, table, strict=True)
    ]
    return sums, [sum(token != -100 for token in row) for row in table]


# --- losses -----------------------------------------------------------------------------------------------------------


def test_sums_and_counts_are_those_of_each_row():
    sums, counts = plain_sums(LOGITS, LABELS)
    ours, ours_counts = sequence_nll(LOGITS, LABELS)
    assert ours.tolist() == pytest.approx(sums, **TOLERANCE)
    assert ours_counts.tolist() == counts


def test_graddiff_is_the_negative_token_mean():
    sums, counts = plain_sums(LOGITS, LABELS)
    assert graddiff_loss(LOGITS, LABELS).item() == pytest.approx(-sum(sums) / sum(counts), **TOLERANCE)


@pytest.mark.parametrize("beta", [0.05, 0.1, 2.0])
def test_npo_is_the_losing_half_of_dpo(beta):
    reference = plain_sums(REFERENCE, LABELS)[0]
    expected = -(2 / beta) * mean(
        log_sigmoid(beta * (s - r)) for s, r in zip(plain_sums(LOGITS, LABELS)[0], reference, strict=True)
    )
    found = npo_loss(LOGITS, LABELS, torch.tensor(reference, dtype=torch.float64), beta=beta)
    assert found.item() == pytest.approx(expected, **TOLERANCE)


@pytest.mark.parametrize(("beta", "delta"), [(4.5, 0.0), (3.5, 1.0)])
def test_simnpo_is_normalised_by_length_and_shifted_by_the_margin(beta, delta):
    pairs = zip(*plain_sums(LOGITS, LABELS), strict=True)
    expected = -(2 / beta) * mean(log_sigmoid(beta * (s / n - delta)) for s, n in pairs)
    assert simnpo_loss(LOGITS, LABELS, beta=beta, delta=delta).item() == pytest.approx(expected, **TOLERANCE)


@pytest.mark.parametrize("beta", [0.1, 0.5])
def test_dpo_compares_what_winner_and_loser_gained(beta):
    sides = {}
    for side, logits, reference, labels in (
        ("winner", WINNER_LOGITS, WINNER_REFERENCE, WINNER_LABELS),
        ("loser", LOGITS, REFERENCE, LABELS),
    ):
        sides[side] = plain_sums(logits, labels)[0], plain_sums(reference, labels)[0]
    expected = -(2 / beta) * mean(
        log_sigmoid(beta * ((wr - w) - (lr - lo)))
        for w, wr, lo, lr in zip(*sides["winner"], *sides["loser"], strict=True)
    )
    found = dpo_loss(
        WINNER_LOGITS, WINNER_LABELS, torch.tensor(sides["winner"][1], dtype=torch.float64),
        LOGITS, LABELS, torch.tensor(sides["loser"][1], dtype=torch.float64), beta=beta,
    )  # fmt: skip
    assert found.item() == pytest.approx(expected, **TOLERANCE)


def plain_undial(student, teacher, token, beta):
    target = log_softmax([s - beta * (i == token) for i, s in enumerate(teacher)])
    return -sum(math.exp(p) * q for p, q in zip(target, log_softmax(student), strict=True))


def test_undial_learns_from_the_adjusted_teacher_on_label_rows():
    student, teacher = LOGITS.tolist(), REFERENCE.tolist()
    expected = mean(plain_undial(student[r][t], teacher[r][t], token, 10.0) for r, t, token in label_positions(LABELS))
    assert undial_loss(LOGITS, LABELS, REFERENCE, beta=10.0).item() == pytest.approx(expected, **TOLERANCE)


def test_published_undial_counts_all_rows_and_reads_minus_100_as_an_index():
    student, teacher, table = LOGITS.tolist(), REFERENCE.tolist(), LABELS.tolist()
    width = len(table[0])
    expected = mean(
        plain_undial(student[r][t], teacher[r][t], range(VOCAB)[table[r][t + 1]], 10.0)
        for r in range(len(table))
        for t in range(width - 1)
    )
    found = undial_loss(LOGITS, LABELS, REFERENCE, beta=10.0, compat="published")
    assert found.item() == pytest.approx(expected, **TOLERANCE)


@pytest.mark.parametrize("target", [numbers(LABELS, 9, HIDDEN)[0, 0], REFERENCE_STATES], ids=["control", "reference"])
def test_rmu_averages_each_row_over_its_own_positions(target):
    sums, counts = plain_rmu(STATES, target, LABELS)
    expected = mean(s / n for s, n in zip(sums, counts, strict=True))
    assert rmu_loss(STATES, LABELS, target).item() == pytest.approx(expected, **TOLERANCE)


def test_published_rmu_divides_every_row_by_every_count():
    sums, counts = plain_rmu(STATES, REFERENCE_STATES, LABELS)
    broadcast = mean(s / n for s in sums for n in counts)
    assert rmu_loss(STATES, LABELS, REFERENCE_STATES, compat="published").item() == pytest.approx(
        broadcast, **TOLERANCE
    )


def test_kl_is_taken_on_label_rows():
    ours, theirs = LOGITS.tolist(), REFERENCE.tolist()
    expected = mean(plain_kl(theirs[r][t], ours[r][t]) for r, t, _ in label_positions(LABELS))
    assert mean_kl(LOGITS, LABELS, REFERENCE).item() == pytest.approx(expected, **TOLERANCE)


def test_published_kl_counts_prompt_and_padding():
    ours, theirs = LOGITS.tolist(), REFERENCE.tolist()
    expected = mean(plain_kl(b, a) for x, y in zip(ours, theirs, strict=True) for a, b in zip(x, y, strict=True))
    assert mean_kl(LOGITS, LABELS, REFERENCE, compat="published").item() == pytest.approx(expected, **TOLERANCE)


def test_the_control_vector_has_the_asked_length_and_no_negative_part():
    vector = control_vector(50, 10.0, seed=3)
    assert vector.norm().item() == pytest.approx(10.0, rel=1e-6)
    assert vector.min() >= 0
    assert torch.equal(vector, control_vector(50, 10.0, seed=3))
    assert not torch.equal(vector, control_vector(50, 10.0, seed=4))


# --- methods ----------------------------------------------------------------------------------------------------------


def side(labels, seed, rows=slice(None)):
    logits, reference = numbers(labels, seed), numbers(labels, seed + 1)
    return Side(
        labels[rows], logits[rows], numbers(labels, seed + 2, HIDDEN)[rows], sequence_nll(reference, labels)[0][rows],
        reference[rows], numbers(labels, seed + 3, HIDDEN)[rows],
    )  # fmt: skip


def sides(rows=slice(None)):
    return {
        "answer": side(LABELS, 10, rows),
        "preferred": side(WINNER_LABELS, 20, rows),
        "retain": side(LABELS, 30, rows),
    }


@pytest.mark.parametrize("name", METHODS)
def test_the_total_is_the_weighted_sum_of_its_terms(name):
    losses = make_method(name, {"alpha": 2.5, "gamma": 0.5}).losses(sides())
    assert losses["total"].item() == pytest.approx(0.5 * losses["forget"].item() + 2.5 * losses["retain"].item())


@pytest.mark.parametrize("name", METHODS)
def test_without_weight_the_retain_term_is_not_computed(name):
    method = make_method(name, {"alpha": 0.0})
    assert "retain" not in method.needs
    assert set(method.losses(sides())) == {"forget", "total"}


# Means over rows; the others are means over all labelled tokens, so a row weighs as much as it has labels.
ROW_MEANS = {"npo", "simnpo", "idkdpo", "altpo", "rmu"}


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("term", ["forget", "retain"])
def test_a_batch_is_the_documented_mean_of_its_single_rows(name, term):
    method = make_method(name, {"alpha": 1.0})
    read = "retain" if term == "retain" else next(iter(method.forget_needs))
    by_row = (name == "rmu") if term == "retain" else name in ROW_MEANS
    counts = [1.0] * 3 if by_row else sequence_nll(sides()[read].logits, sides()[read].labels)[1].tolist()
    singles = [method.losses(sides(slice(i, i + 1)))[term].item() for i in range(3)]
    expected = sum(n * single for n, single in zip(counts, singles, strict=True)) / sum(counts)
    assert method.losses(sides())[term].item() == pytest.approx(expected, **TOLERANCE)


@pytest.mark.parametrize("name", METHODS)
def test_a_kl_retain_term_is_zero_at_the_start(name):
    method = make_method(name, {"alpha": 1.0, "retain_loss": "kl"})
    start = side(LABELS, 30)
    assert method.retain_term(Side(start.labels, start.logits, reference_logits=start.logits)).item() == pytest.approx(
        0
    )


ANSWERS = [Encoded((1, 5, 6, 7, 8, 2), 3), Encoded((1, 9, 10, 11, 2), 2)]
WISHES = [Encoded((1, 5, 6, 20, 21, 2), 3), Encoded((1, 9, 22, 2), 2)]
KEPT = [Encoded((1, 30, 31, 32, 2), 2), Encoded((1, 33, 34, 35, 36, 2), 3)]


def views(method, model):
    """What a method sees of a model that is its own reference."""
    rows = {"answer": ANSWERS, "preferred": WISHES, "retain": KEPT}
    block = None if method.block is None else anatomy(model).blocks[method.block]
    cut = method.compat is None and block is None
    seen = look(model, rows, pad_id=0, device="cpu", block=block, cut=cut, mask=method.compat is not None)
    return {
        name: Side(
            s.labels, s.logits, s.states, sequence_nll(s.logits, s.labels)[0].detach(), s.logits.detach(),
            None if s.states is None else s.states.detach(),
        )
        for name, s in seen.items()
    }  # fmt: skip


@pytest.mark.parametrize("compat", [None, "published"])
@pytest.mark.parametrize("name", METHODS)
def test_a_step_on_forget_data_lowers_its_probability(name, compat):
    model = miniature("llama", layers=2, vocab=VOCAB).double()
    knowing = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(20):  # only an answer that is known can be forgotten
        mean_nll(*_answers(model)).backward()
        knowing.step()
        knowing.zero_grad()
    before = mean_nll(*_answers(model)).item()
    # A step towards a random vector need not hurt at first order; a large one does.
    extra, step = ({"layer": 1, "scoeff": 20.0}, 1.0) if name == "rmu" else ({}, 1e-4)
    method = make_method(name, {"alpha": 0.0, "compat": compat, **extra})
    method.losses(views(method, model))["total"].backward()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter -= step * parameter.grad / (parameter.grad.norm() + 1e-12)
    assert mean_nll(*_answers(model)).item() > before


def _answers(model):
    seen = look(model, {"answer": ANSWERS}, pad_id=0, device="cpu")["answer"]
    return seen.logits, seen.labels


@pytest.mark.parametrize("cut", [True, False])
@pytest.mark.parametrize("mask", [True, False])
def test_one_pass_over_all_sides_sees_what_a_pass_over_each_sees(cut, mask):
    model = miniature("llama").double()
    block = None if cut else anatomy(model).blocks[2]
    rows = {"answer": ANSWERS, "preferred": WISHES, "retain": KEPT}
    how = {"pad_id": 0, "device": "cpu", "cut": cut, "mask": mask, "block": block}
    together = look(model, rows, **how)
    for name, part in rows.items():
        alone = look(model, {name: part}, **how)[name]
        assert torch.equal(together[name].labels, alone.labels)
        real = alone.labels != -100 if not mask else torch.ones_like(alone.labels, dtype=torch.bool)
        torch.testing.assert_close(together[name].logits[real], alone.logits[real], atol=1e-10, rtol=0)
        if block is not None:
            torch.testing.assert_close(together[name].states[real], alone.states[real], atol=1e-10, rtol=0)


def test_rmu_trains_nothing_above_its_block():
    import re

    model = miniature("llama")
    pattern = make_method("rmu", {"layer": 1}).trained(anatomy(model))
    trained = {name for name, _ in model.named_parameters() if re.match(pattern, name)}
    assert {name.split(".")[2] for name in trained if ".layers." in name} == {"0", "1"}
    assert not any(name.startswith(("lm_head", "model.norm")) for name in trained)


def test_an_unknown_method_is_refused_with_the_nearest():
    with pytest.raises(UnknownName, match="simnpo"):
        make_method("simnop", {})


@pytest.mark.parametrize(
    ("name", "hyper", "message"),
    [
        ("graddiff", {"beta": 0.1}, "graddiff has no option beta.\n  It has: alpha"),
        ("npo", {"beta": 0.0}, "beta must be above zero"),
        ("npo", {"alpha": -1}, "alpha must be zero or more"),
        ("npo", {"alpha": float("nan")}, "alpha must be zero or more"),
        ("npo", {"beta": "0.1"}, "beta must be above zero"),
        ("npo", {"retain_loss": "embed_diff"}, "retain_loss is one of nll, kl"),
        ("npo", {"compat": "publishd"}, "Did you mean published"),
        ("rmu", {"layer": 1.5}, "layer must be a whole number"),
    ],
)
def test_settings_that_make_no_sense_are_refused(name, hyper, message):
    with pytest.raises(UsageError, match=message):
        make_method(name, hyper)


def test_the_listing_says_what_each_method_takes():
    rows = methods()
    assert [row["name"] for row in rows] == sorted(METHODS)
    assert all(row["description"] and row["cite"] for row in rows)
    by_name = {row["name"]: row["hyper_parameters"] for row in rows}
    assert by_name["simnpo"]["gamma"] == 0.125
    assert by_name["undial"]["lr"] == 1e-4
    assert by_name["undial"]["alpha"] == 0.0
    for name, kind in METHODS.items():
        assert set(by_name[name]) == {"lr", *(field.name for field in fields(kind))}
