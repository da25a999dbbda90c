"""Every metric against numbers worked out by hand, or against a plain computation by scipy, sklearn or numpy."""

from __future__ import annotations

import math
import zlib

import numpy as np
import pytest
from scipy.stats import hmean, ks_2samp
from sklearn.metrics import roc_auc_score

from evidential import random_answers, said
from residuum.metrics.aggregate import (
    harmonic_mean,
    memorization,
    model_utility,
    overall,
    privacy,
    privacy_mia,
    relative_utility,
    utility,
)
from residuum.metrics.generation import paraphrase_rouge, rouge
from residuum.metrics.memorization import (
    exact_memorization,
    extraction_strength,
    paraphrase_probability,
    probability,
    truth_ratio,
    truth_ratio_open_unlearning,
    wrong_to_right,
)
from residuum.metrics.privacy import (
    forget_quality,
    gradient_norm_attack,
    loss_attack,
    min_k_attack,
    min_kpp_attack,
    privacy_leakage,
    reference_attack,
    retain_closeness,
    zlib_attack,
)
from residuum.metrics.representation import cka, fisher_masked, logit_lens
from residuum.metrics.scores import auc
from residuum.metrics.utility import answer_advantage, chosen_probability, fluency, truth_advantage


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(0)


# Memorization


def test_em_is_the_share_of_right_tokens_without_the_closing_one():
    answers = [said([1, 2, 3, 9], [1, 7, 3, 8]), said([4, 9], [4, 0]), said([5, 9], [6, 9])]
    assert exact_memorization(answers).tolist() == [2 / 3, 1.0, 0.0]


def test_em_of_an_answer_without_tokens_is_undefined():
    assert np.isnan(exact_memorization([said([9])])).all()


def test_em_counts_the_last_token_of_an_answer_that_is_not_closed():
    assert exact_memorization([said([1, 2], [1, 0], closed=False)]).tolist() == [0.5]


@pytest.mark.parametrize(
    ("predictions", "expected"),
    [
        ([1, 2, 3, 4], 1.0),  # all right: k = 0
        ([0, 2, 3, 4], 0.75),
        ([1, 0, 3, 4], 0.5),
        ([1, 2, 3, 0], 0.25),  # never right to the end: k = T - 1
        ([0, 0, 0, 0], 0.25),
    ],
)
def test_es_looks_for_the_first_place_from_which_all_is_right(predictions, expected):
    assert extraction_strength([said([1, 2, 3, 4, 9], [*predictions, 0])]).tolist() == [expected]


@pytest.mark.parametrize("prediction", [4, 5])
def test_es_of_a_one_token_answer_is_one_whether_right_or_wrong(prediction):
    assert extraction_strength([said([4, 9], [prediction, 9])]).tolist() == [1.0]


def test_es_of_an_answer_without_tokens_is_zero_and_counts():
    assert extraction_strength([said([9])]).tolist() == [0.0]


def test_es_equals_the_plain_search(rng):
    answers = random_answers(rng, 50)

    def plain(labels, predictions):
        for k in range(len(labels)):
            if list(predictions[k:]) == list(labels[k:]):
                break
        return 1 - k / len(labels)

    expected = [plain(a.labels[:-1], a.predictions[:-1]) for a in answers]
    np.testing.assert_allclose(extraction_strength(answers), expected, atol=1e-15)


def test_probability_is_length_normalised_and_counts_the_closing_token():
    assert probability([said(log_probs=[-1.0, -2.0, -3.0])]) == pytest.approx(math.exp(-2.0))


def test_paraphrase_probability_is_the_geometric_mean():
    para = [[said(log_probs=[-1.0, -1.0]), said(log_probs=[-3.0, -3.0])]]
    assert paraphrase_probability(para) == pytest.approx(math.exp(-2.0))


def test_paraphrase_probability_is_cut_off_at_the_smallest_probability():
    para = [[said(log_probs=[-1000.0, -1000.0]), said(log_probs=[0.0, 0.0])]]
    assert paraphrase_probability(para) == pytest.approx(math.sqrt(1e-12))


def test_both_truth_ratios_by_hand():
    right = [[said(log_probs=[-1.0, -1.0])]]
    wrong = [[said(log_probs=[-2.0, -2.0]), said(log_probs=[-4.0, -4.0])]]
    pc, pw = math.exp(-1), math.exp(-3)
    assert truth_ratio(right, wrong) == pytest.approx(pc / (pc + pw))
    r = wrong_to_right(right, wrong)
    assert r == pytest.approx(pw / pc)
    assert truth_ratio_open_unlearning(r) == pytest.approx(pw / pc)
    assert truth_ratio_open_unlearning(1 / r) == pytest.approx(pw / pc)


# Generation


def test_rouge_reads_the_true_answer_in_order():
    assert rouge(["she was born in Port Ellen"], ["Born in Port Ellen."]).tolist() == [1.0]
    assert rouge(["Ellen Port"], ["Port Ellen"]).tolist() == [0.5]


def test_rouge_stems_its_words():
    assert rouge(["he writes books"], ["writing book"]).tolist() == [1.0]


@pytest.mark.parametrize(("text", "truth"), [("", "Port Ellen"), ("Port Ellen", "?!"), ("", "")])
def test_rouge_of_nothing_is_zero(text, truth):
    assert rouge([text], [truth]).tolist() == [0.0]


def test_rouge_of_other_scripts_is_that_of_the_package():
    # The package knows a to z and 0 to 9 only, so accents split words and other scripts vanish.
    assert rouge(["北京"], ["北京"]).tolist() == [0.0]
    assert rouge(["José Saramago"], ["José Saramago"]).tolist() == [1.0]


def test_paraphrase_rouge_is_the_mean_over_paraphrases():
    assert paraphrase_rouge(["born in Ellen"], [["born in Ellen", "from Ellen"]]).tolist() == [0.75]


# Privacy


def test_attacks_equal_their_plain_formulas(rng):
    members, others = random_answers(rng, 30), random_answers(rng, 20)

    def min_k(values):
        count = max(1, int(0.4 * len(values)))
        return -np.mean(sorted(values)[:count])

    def plain(answer):
        z = (answer.log_probs - answer.mean) / np.sqrt(np.maximum(answer.variance, 1e-6))
        return -answer.log_probs.mean(dtype=float), min_k(answer.log_probs[:-1].astype(float)), min_k(z[:-1])

    for side in ("members", "nonmembers"):
        expected = np.array([plain(a) for a in (members if side == "members" else others)])
        for column, attack in enumerate((loss_attack, min_k_attack, min_kpp_attack)):
            np.testing.assert_allclose(getattr(attack(members, others), side), expected[:, column], rtol=1e-5)


def test_min_k_of_one_token_takes_it_and_of_none_is_zero():
    found = min_k_attack([said([5, 9], log_probs=[-0.7, -3.0])], [said([9], log_probs=[-3.0])])
    assert found.members == pytest.approx([0.7])
    assert found.nonmembers.tolist() == [0.0]


def test_min_k_rounds_the_share_down():
    tokens = said(log_probs=[-4.0, -3.0, -2.0, -1.0, -9.0])  # four words: 0.4 * 4 = 1.6, so one
    assert min_k_attack([tokens], [tokens]).members == pytest.approx([4.0])


def test_zlib_divides_by_the_compressed_answer():
    answer = said(log_probs=[-1.0, -2.0])
    found = zlib_attack([answer], [answer], ["čeština"], [""])
    assert found.members == pytest.approx([1.5 / len(zlib.compress("čeština".encode()))])
    assert found.nonmembers == pytest.approx([1.5 / len(zlib.compress(b""))])


def test_the_reference_attack_subtracts_the_reference_loss():
    one, two = said(log_probs=[-1.0, -1.0]), said(log_probs=[-4.0, -4.0])
    found = reference_attack([one], [two], [two], [two])
    assert (found.members.tolist(), found.nonmembers.tolist()) == ([-3.0], [0.0])


def test_auc_equals_sklearn_ties_included(rng):
    members, others = rng.integers(0, 6, 40).astype(float), rng.integers(1, 8, 30).astype(float)
    expected = roc_auc_score([0] * 40 + [1] * 30, np.concatenate([members, others]))
    assert auc(gradient_norm_attack(members, others)) == pytest.approx(expected, abs=1e-12)


def test_auc_of_recognised_members_is_one_and_of_equal_scores_a_half():
    assert auc(gradient_norm_attack(np.zeros(3), np.ones(2))) == 1.0
    assert auc(gradient_norm_attack(np.ones(3), np.ones(2))) == 0.5


def test_retain_closeness_by_hand():
    assert retain_closeness(0.6, 0.4) == pytest.approx(0.5)
    assert retain_closeness(1.0, 0.4) == 0.0
    assert retain_closeness(0.4, 0.4) == 1.0
    assert retain_closeness(0.4, 0.0) is None


def test_privleak_by_hand():
    assert privacy_leakage(0.9, 0.4) == pytest.approx((0.1 - 0.6) / 0.6 * 100)
    assert privacy_leakage(0.4, 0.4) == pytest.approx(0.0)


def test_forget_quality_is_the_ks_test(rng):
    one, two = rng.random(50), rng.random(50) * 1.5
    assert forget_quality(one, two) == ks_2samp(one, two).pvalue
    assert forget_quality(one, one) == pytest.approx(1.0)


# Utility


def test_the_chosen_probability_compares_with_the_wrong_answers():
    answers = [said(log_probs=[-1.0, -1.0])]
    wrong = [[said(log_probs=[-2.0, -2.0]), said(log_probs=[-3.0, -3.0])]]
    p = np.exp([-1.0, -2.0, -3.0])
    assert chosen_probability(answers, wrong) == pytest.approx(p[0] / p.sum())


def test_the_truth_advantage_by_hand_and_never_negative():
    near, far = [[said(log_probs=[-1.0, -1.0])]], [[said(log_probs=[-3.0, -3.0])]]
    assert truth_advantage(near, far) == pytest.approx(1 - math.exp(-2))
    assert truth_advantage(far, near).tolist() == [0.0]
    assert answer_advantage(near[0], far) == pytest.approx(1 - math.exp(-2))


def test_fluency_is_the_classifier_as_it_is():
    assert fluency(np.array([0.2, 0.4])).tolist() == [0.2, 0.4]


# Representation


def test_logit_lens_by_hand():
    full, retain = np.array([[0.0, 0.0, 0.0]]), np.array([[-2.0, -1.0, -0.01]])
    model = np.array([[-1.0, -3.0, -9.0]])
    # Layer 2 is below tau; layer 0 lacks half, layer 1 more than retain and is clipped.
    assert logit_lens(model, full, retain) == pytest.approx((2 * 0.5 + 1 * 1) / 3, abs=1e-7)
    assert np.isnan(logit_lens(model, full, full)).all()


def test_cka_score_by_hand():
    full, model = np.array([[0.5, 0.8, 1.0]]), np.array([[0.75, 0.7, 0.3]])
    found = cka(np.vstack([model, full]), np.vstack([full, full]))
    assert found.value == pytest.approx(0.5 * 0.5 / 0.7, abs=1e-6)
    assert found.resampled == pytest.approx([0.0])


def test_fisher_score_by_hand():
    def means(*layers):
        return np.array([[[layer] * 3 for layer in layers]])  # one example

    full, retain, model = means(1.0, 1.0, 2.0), means(3.0, 2.0, 2.0), means(2.0, 5.0, 0.0)
    # Layer 0: 1 - (3-2)/2 = 0.5, weight 2; layer 1: over retain, 1, weight 1; layer 2: no excess, no weight.
    assert fisher_masked(model, full, retain, place=1) == pytest.approx((2 * 0.5 + 1 * 1) / 3, abs=1e-6)


@pytest.mark.parametrize(("like", "expected"), [("full", 0.0), ("retain", 1.0)])
def test_representation_scores_run_from_full_to_retain(like, expected, rng):
    full, retain = rng.random((5, 3, 3)), rng.random((5, 3, 3)) + 2
    model = full if like == "full" else retain
    assert fisher_masked(model, full, retain, place=0) == pytest.approx(expected, abs=1e-6)
    lens_full, lens_retain = -rng.random((4, 3)), -rng.random((4, 3)) - 2
    lens = lens_full if like == "full" else lens_retain
    np.testing.assert_allclose(logit_lens(lens, lens_full, lens_retain), expected, atol=1e-6)


# Aggregates


def test_the_harmonic_mean_is_scipys(rng):
    values = rng.random(5) + 0.1
    assert harmonic_mean(values) == pytest.approx(hmean(values), abs=1e-10)
    assert harmonic_mean(values, epsilon=0.0) == pytest.approx(hmean(values), abs=1e-15)


def test_the_harmonic_mean_drops_what_is_missing():
    assert harmonic_mean([0.5, None, math.nan, 0.5], epsilon=0.0) == 0.5
    assert harmonic_mean([None]) is None


def test_memorization_is_undefined_when_a_part_is_all_memorized():
    assert memorization(0.5, 0.5, 0.5, 0.5) == 0.5
    assert memorization(1.0, 0.5, 0.5, 0.5) is None
    assert memorization(None, 0.5, 0.5, 0.5) is None


def test_privacy_of_a_recognised_model_is_nearly_zero():
    assert privacy_mia(0.0, 0.0, 0.0, 0.0) == 1e-12
    assert privacy(0.8, 0.4) == pytest.approx(hmean([0.8, 0.4]))


def test_utility_without_fluency_is_model_utility():
    assert model_utility(*[0.5] * 9) == pytest.approx(0.5)
    assert utility(0.5, None) == 0.5
    assert utility(0.5, 1.0) == pytest.approx(2 / 3)


def test_relative_utility_is_at_most_one():
    assert relative_utility(0.4, 0.8) == pytest.approx(0.5)
    assert relative_utility(0.9, 0.8) == 1.0


def test_overall_needs_all_axes():
    assert overall(0.5, 0.5, 0.5) == pytest.approx(0.5)
    assert overall(None, 0.5, 0.5) is None
