"""The grammar of model names, without real data."""

from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from residuum.errors import InputError, UnknownName
from residuum.models.names import (
    ALIASES,
    METHODS,
    POOL_N,
    POOL_P,
    PRESETS,
    ModelName,
    all_models,
    alpha5,
    parse,
    resolve,
    short_name,
    shorten,
    subset_150,
)

SIMNPO = "simnpo_lr2e5_b35_a1_d1_g0125_ep5"
SIMNPO_ID = "open-unlearning/unlearn_tofu_Llama-3.2-1B-Instruct_forget10_SimNPO_lr2e-05_b3.5_a1_d1_g0.125_ep5"
NPO = {"lr": 1e-5, "beta": 0.1, "alpha": 1, "epoch": 5}

numbers = st.one_of(
    st.integers(0, 1000), st.floats(0, 1e6, allow_nan=False, allow_infinity=False, allow_subnormal=False)
)


@st.composite
def model_names(draw: st.DrawFn) -> ModelName:
    """Any method with any values, on the published grid or not."""
    label = draw(st.sampled_from(sorted(METHODS)))
    return ModelName(label.lower(), tuple(draw(numbers) for _ in METHODS[label]))


def test_a_short_name_says_method_and_hyper_parameters() -> None:
    name = parse(SIMNPO)
    assert (name.method, name.label) == ("simnpo", "SimNPO")
    assert name.hyper == {"lr": 2e-5, "beta": 3.5, "alpha": 1, "delta": 1, "gamma": 0.125, "epoch": 5}


def test_short_name_and_hub_id_lead_to_each_other() -> None:
    assert resolve(SIMNPO) == parse(SIMNPO).hub_id == SIMNPO_ID
    assert shorten(SIMNPO_ID) == parse(SIMNPO_ID).short == SIMNPO


@given(model_names())
def test_any_short_name_is_read_back_as_it_was_meant(name: ModelName) -> None:
    """Two checkpoints with different values never share a name."""
    assert parse(name.short) == name


@given(model_names())
def test_any_hub_id_is_read_back_as_it_was_meant(name: ModelName) -> None:
    assert parse(name.hub_id) == name


@pytest.mark.parametrize(
    ("changes", "short"),
    [
        ({}, "npo_lr1e5_b01_a1_ep5"),
        ({"lr": 5e-4}, "npo_lr5e4_b01_a1_ep5"),
        ({"lr": 1.5e-5}, "npo_lr1.5e5_b01_a1_ep5"),
        ({"alpha": 2.5}, "npo_lr1e5_b01_a2.5_ep5"),
        ({"alpha": 1.0, "epoch": 5.0}, "npo_lr1e5_b01_a1_ep5"),
        ({"beta": 0.005}, "npo_lr1e5_b0005_a1_ep5"),
        ({"beta": 15}, "npo_lr1e5_b15_a1_ep5"),
        ({"beta": 1.5}, "npo_lr1e5_b1.5_a1_ep5"),
    ],
)
def test_a_checkpoint_of_ours_is_named_by_the_same_grammar(changes: dict[str, float], short: str) -> None:
    assert short_name("NPO", NPO | changes) == short


def test_a_name_wants_every_hyper_parameter_and_no_other() -> None:
    with pytest.raises(InputError, match="lr, beta, alpha, epoch"):
        short_name("npo", {"lr": 1e-5, "gamma": 1})


def test_a_name_wants_finite_numbers() -> None:
    with pytest.raises(InputError, match="one number each"):
        short_name("npo", NPO | {"alpha": float("nan")})


def test_an_unknown_method_has_no_names() -> None:
    with pytest.raises(UnknownName, match="Nearest: SimNPO"):
        short_name("simnp", NPO)


def test_an_alias_is_parsed_as_what_it_stands_for() -> None:
    assert parse("npo").short == ALIASES["npo"]


@pytest.mark.parametrize(
    "name",
    [
        "",
        "full",
        "npo_lr1e5_b01_a1",
        "npo_lr1e5_a1_b01_ep5",
        "npo_lr1e5_bx_a1_ep5",
        "npo_lr1e5_b01_ainf_ep5",
        "npo_lr5_b01_a1_ep5",
    ],
)
def test_what_the_grammar_does_not_cover_is_not_parsed(name: str) -> None:
    with pytest.raises(UnknownName):
        parse(name)


def test_a_name_off_the_grid_is_refused_with_the_nearest_names() -> None:
    with pytest.raises(UnknownName) as caught:
        resolve("simnpo_lr2e5_b35_a1_d1_g0126_ep5")
    assert caught.value.nearest[0] == SIMNPO
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(("typo", "alias"), [("simnop", "simnpo"), ("retian", "retain"), ("ful", "full")])
def test_a_misspelt_alias_is_refused_with_the_alias(typo: str, alias: str) -> None:
    with pytest.raises(UnknownName, match=f"Nearest:.*{alias}"):
        resolve(typo)


def test_a_name_like_no_other_is_refused_with_a_hint() -> None:
    with pytest.raises(UnknownName, match="owner/name"):
        resolve("zzzzzzzz")


def test_a_hub_id_passes_through() -> None:
    assert resolve("somebody/some-model") == "somebody/some-model"


def test_an_existing_folder_passes_through(tmp_path, monkeypatch) -> None:
    (tmp_path / "npo_lr7e5_mine").mkdir()
    monkeypatch.chdir(tmp_path)
    assert resolve("npo_lr7e5_mine") == "npo_lr7e5_mine"


def test_a_registered_name_wins_over_a_folder(tmp_path, monkeypatch) -> None:
    (tmp_path / SIMNPO).mkdir()
    monkeypatch.chdir(tmp_path)
    assert resolve(SIMNPO) == SIMNPO_ID


def test_every_alias_resolves_to_a_hub_id() -> None:
    assert {resolve(alias).split("/")[0] for alias in ALIASES} == {"open-unlearning"}


@pytest.mark.parametrize("alias", ["full", "retain"])
def test_full_and_retain_are_found_back_from_their_ids(alias: str) -> None:
    assert shorten(resolve(alias)) == alias


def test_an_id_without_a_short_name_is_shortened_to_itself() -> None:
    assert shorten("somebody/some-model") == "somebody/some-model"


def test_the_list_goes_by_method_and_then_by_name() -> None:
    names = list(all_models())
    methods = ["simnpo", "npo", "idknll", "idkdpo", "graddiff", "altpo", "rmu", "undial"]
    assert names == sorted(names, key=lambda name: (methods.index(name.split("_")[0]), name))


def test_the_list_is_a_copy() -> None:
    all_models().clear()
    assert len(all_models()) == 398


def test_the_pools_hold_30_models_each_in_the_published_order() -> None:
    assert len(set(POOL_P)) == len(POOL_P) == len(set(POOL_N)) == len(POOL_N) == 30
    start = "open-unlearning/neg_tofu_Llama-3.2-1B-Instruct_"
    assert [name.removeprefix(start) for name in POOL_N[:4]] == [
        "retain90_lr1e-05_wd0.01_epoch5",
        "retain90_forget10_pert_lr1e-05_wd0.01_epoch5",
        "retain90_celeb10_bio_lr1e-05_wd0.01_epoch5",
        "retain90_lr1e-05_wd0.01_epoch10",
    ]
    assert POOL_P[-1] == (
        "open-unlearning/pos_tofu_Llama-3.2-1B-Instruct_retain90_forget10_para_lr5e-05_wd0.01_epoch10"
    )


def test_the_subset_has_18_models_per_method_and_24_of_simnpo() -> None:
    counts = [sum(name.startswith(f"{label.lower()}_") for name in subset_150()) for label in METHODS]
    assert counts == [24, 18, 18, 18, 18, 18, 18, 18]


def test_the_alpha_5_set_is_that_of_the_seed() -> None:
    common = ("1e5", "2e5", "5e5")
    expected = {f"{method}_lr{lr}_a5_ep5" for method in ("graddiff", "idknll") for lr in common}
    expected |= {f"{method}_lr{lr}_b01_a5_ep5" for method in ("npo", "idkdpo", "altpo") for lr in common}
    expected |= {f"simnpo_lr{lr}_b35_a1_d1_g0125_ep5" for lr in common}
    expected |= {f"undial_lr{lr}_b10_a5_ep5" for lr in ("1e5", "1e4", "3e4")}
    expected |= {f"rmu_lr{lr}_l{layer}_s10_ep5" for lr in common for layer in (5, 10, 15)}
    assert sorted(alpha5()) == sorted(expected)


def test_a_preset_names_models_and_splits_that_belong_together() -> None:
    assert len(PRESETS) == 9
    preset = PRESETS["forget01-8b"]
    assert preset.base == "meta-llama/Llama-3.1-8B-Instruct"
    assert preset.full == "open-unlearning/tofu_Llama-3.1-8B-Instruct_full"
    assert preset.retain == "open-unlearning/tofu_Llama-3.1-8B-Instruct_retain99"
    assert (preset.forget_split, preset.retain_split, preset.holdout_split) == ("forget01", "retain99", "holdout01")


def test_the_default_preset_is_what_full_and_retain_mean() -> None:
    preset = PRESETS["forget10-1b"]
    assert (preset.full, preset.retain) == (resolve("full"), resolve("retain"))


def test_names_do_not_import_torch() -> None:
    code = "import sys, residuum.models.names; sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
