"""Searches on scripted judges: exact sequences, best steps, bounds."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from residuum.errors import UsageError
from residuum.steering.search import SearchConfig, Step, best_step, new_search


def run(judge, **settings):
    search = new_search(SearchConfig(**settings))
    while (scale := search.propose()) is not None:
        search.record(*judge(scale))
    return search


def scales(judge, **settings):
    return [step.scale for step in run(judge, **settings).steps]


def coherent(_):
    return 50.0, 90.0


def incoherent(_):
    return 50.0, 10.0


def test_coherent_steps_grow_by_three_tenths():
    assert scales(coherent) == pytest.approx([1, 1.3, 1.69, 2.197])


def test_incoherent_steps_shrink_by_a_tenth():
    assert scales(incoherent) == pytest.approx([1, 0.9, 0.81, 0.729])


def test_mixed_steps_follow_each_their_factor():
    assert scales(lambda x: (50.0, 90.0 if x < 1.2 else 60.0)) == pytest.approx([1, 1.3, 1.17, 1.521])


def test_exactly_the_threshold_is_coherent():
    assert scales(lambda _: (0.0, 70.0)) == pytest.approx([1, 1.3, 1.69, 2.197])
    assert scales(lambda _: (0.0, 69.999)) == pytest.approx([1, 0.9, 0.81, 0.729])


@given(st.lists(st.floats(0, 100), min_size=8, max_size=8))
def test_no_momentum_is_the_plain_rule(coherences):
    def judge():
        left = iter(coherences)
        return lambda _: (50.0, next(left))

    plain, expected = scales(judge(), steps=8, momentum=0.0), [1.0]
    for coherence in coherences[:-1]:
        expected.append(min(8.0, max(0.02, expected[-1] * (1.3 if coherence >= 70 else 0.9))))
    assert plain == pytest.approx(expected)


def test_momentum_smooths_the_steps():
    assert scales(coherent, momentum=0.5, steps=3) == pytest.approx([1, 1.15, 1.15 * 1.225])


def test_a_push_is_never_longer_than_eight_activations():
    assert max(scales(coherent, steps=20)) == 8.0
    assert max(scales(coherent, search="bracket", steps=20)) == 8.0


def test_the_negative_direction_mirrors_the_positive_one():
    assert scales(coherent, direction="negative") == pytest.approx([-1, -1.3, -1.69, -2.197])


def best(pairs, **settings):
    return best_step([Step(1.0, trait, coherence) for trait, coherence in pairs], SearchConfig(**settings))


def test_the_best_step_is_the_strongest_coherent_one():
    assert best([(60, 90), (80, 70), (99, 69)]) == (1, True)


def test_the_first_of_equals_wins():
    assert best([(60, 90), (80, 80), (80, 95)]) == (1, True)


def test_without_a_coherent_step_the_most_coherent_one_is_kept_and_flagged():
    assert best([(60, 20), (80, 60), (99, 10)]) == (1, False)


def test_the_negative_direction_looks_for_the_lowest_trait():
    assert best([(40, 90), (10, 75), (0, 30)], direction="negative") == (1, True)


def test_a_star_needs_strength_and_coherence():
    config = SearchConfig()
    assert Step(1, 81, 70).starred(config)
    assert not Step(1, 80, 90).starred(config)
    assert not Step(1, 99, 69).starred(config)


@pytest.mark.parametrize("edge", [0.1, 0.3, 0.8, 1.5, 3.0, 6.0])
def test_the_bracket_comes_within_a_fifth_of_the_edge_where_the_plain_rule_may_not(edge):
    def judge(x):
        return 100 * min(1, x / 8), 90.0 if x <= edge else 20.0

    found = run(judge, search="bracket", steps=8)
    reached = max(step.scale for step in found.steps if step.coherence >= 70)
    assert edge / 1.25 <= reached <= edge


def test_the_plain_rule_never_finds_a_layer_that_needs_a_third():
    steps = run(lambda x: (50.0, 90.0 if x < 0.4 else 10.0)).steps
    assert not any(step.coherent(70) for step in steps)


@pytest.mark.parametrize(
    "settings",
    [{"steps": 0}, {"up": 0.0}, {"down": float("nan")}, {"start": -1.0}, {"momentum": 1.0}, {"min_coherence": 101}, {"search": "grid"}, {"direction": "up"}],
)  # fmt: skip
def test_settings_without_sense_are_refused(settings):
    with pytest.raises(UsageError):
        SearchConfig(**settings).check()
