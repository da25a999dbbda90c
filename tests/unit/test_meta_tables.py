"""From values to verdicts: filters, common subset, tables of numbers, pages and lists of models; no model is loaded."""

from __future__ import annotations

import json
from html.parser import HTMLParser

import numpy as np
import pytest

from residuum.cli.app import run
from residuum.errors import DataError, MissingExtra, UnknownName, UsageError
from residuum.meta import attacks
from residuum.meta.attacked import Attacked, Rules, weigh
from residuum.meta.catalogue import TABLE, choose
from residuum.meta.faithfulness import in_knowledge_direction
from residuum.meta.folder import labels, read_models
from residuum.meta.pools import Pools, check_pools, judge
from residuum.meta.robustness import (
    Change,
    harmonic_mean,
    harmonic_means,
    measure_robustness,
    quantization_score,
    relearning_score,
)
from residuum.meta.table import Table, _rank
from residuum.meta.values import robustness_from_values
from residuum.models.names import POOL_N, POOL_P, subset_150


def call(*words: object) -> int:
    with pytest.raises(SystemExit) as stop:
        run([str(word) for word in words])
    return int(stop.value.code or 0)


def model(name, before, quantized, relearned, *, utility=1.0, role="unlearned", diverged=False):
    return {
        "model": name, "role": role, "utility_rel": utility, "before": before,
        "after": {"quantization": quantized, "relearning": None if diverged else relearned},
        "failed": {"relearning": "the loss is nan"} if diverged else {}, "diverged": diverged,
    }  # fmt: skip


DIRECTIONS = {"em": "more knowledge", "uds": "less knowledge"}
RETAIN = model("retain", {"em": 0.2, "uds": 1.0}, {"em": 0.2, "uds": 1.0}, {"em": 0.3, "uds": 0.8}, role="retain")
MODELS = [
    RETAIN,
    model("a", {"em": 0.3, "uds": 0.8}, {"em": 0.4, "uds": 0.7}, {"em": 0.5, "uds": 0.4}),
    model("b", {"em": 0.9, "uds": 0.7}, {"em": 0.9, "uds": 0.7}, {"em": 1.0, "uds": 0.5}),
    model("c", {"em": 0.2, "uds": 0.9}, {"em": 0.2, "uds": 0.9}, {"em": 0.3, "uds": 0.8}, utility=0.5),
]
THRESHOLDS = {"em": 0.6, "uds": 0.5}


def verdict(models=MODELS, metrics=("em", "uds"), **rules) -> Attacked:
    return weigh(
        models, list(metrics), Rules(**{"thresholds": THRESHOLDS, "directions": DIRECTIONS, **rules}), {"data": "here"}
    )


def pools(p=(0.9, 0.8), n=(0.1, 0.2), **further) -> Pools:
    models = [
        {"model": f"{pool}{i}", "pool": pool, "failed": None, "metrics": {"em": value, **further}}
        for pool, values in (("P", p), ("N", n))
        for i, value in enumerate(values)
    ]
    return judge(models, ["em", *further], against="em", settings={"data": "here"})


# Directions


def test_an_attacks_auc_reads_as_it_is_and_retain_likeness_is_turned_round():
    assert in_knowledge_direction(0.9, "two-sided") == 0.9
    assert in_knowledge_direction(0.9, "less knowledge") == pytest.approx(0.1)


def test_all_means_the_22_of_the_published_table():
    assert choose("all") == TABLE
    assert len(TABLE) == 22


def test_a_retain_relative_attack_brings_its_raw_attack():
    assert choose("s_mia_loss") == ("mia_loss", "s_mia_loss")


def test_a_metric_that_does_not_measure_knowledge_is_refused():
    with pytest.raises(UsageError, match="model_utility"):
        choose("em,model_utility")
    with pytest.raises(UnknownName, match="rouge"):
        choose("rogue")


# Robustness


def test_means_and_harmonic_mean_are_resampled_over_the_same_models():
    changes = [Change(f"m{i}", 0.5, 0.5 + i / 10) for i in range(5)]
    found = measure_robustness("em", changes, changes, Change("retain", 0.5, 0.7))
    assert found.robustness_ci95[0] <= found.robustness <= found.robustness_ci95[1]
    assert found.resampled.shape == (2000,)


def test_a_harmonic_mean_of_columns_is_zero_with_a_zero_and_missing_with_a_gap():
    found = harmonic_means(np.array([0.5, 0.0, np.nan]), np.array([1.0, 1.0, 1.0]))
    assert found[:2] == pytest.approx([harmonic_mean(0.5, 1.0), 0.0])
    assert np.isnan(found[2])


def test_only_models_that_kept_utility_and_look_unlearned_count():
    found = verdict()
    assert found.usable == {"em": ["a"], "uds": ["a", "b"]}
    assert found.counts["em"] == {
        "all": 3, "undefined": 0, "low_utility": 1, "still_knows": 1, "usable": 1, "diverged": 0, "lost": 0,
    }  # fmt: skip
    assert found.metrics["em"].quantization == pytest.approx(quantization_score(0.3, 0.4))
    assert found.metrics["em"].relearning == pytest.approx(relearning_score(0.2, 0.1))
    uds = [quantization_score(0.2, 0.3), quantization_score(0.3, 0.3)]
    assert found.metrics["uds"].quantization == pytest.approx(np.mean(uds)), "in knowledge direction"
    assert found.summary()["utility"] == {"floor": 0.8, "pass": 2, "of": 3}


def test_a_common_subset_judges_all_metrics_on_the_same_models():
    found = verdict(common_subset=True)
    assert found.usable == {"em": ["a"], "uds": ["a"]}
    assert any("1 models are usable for all 2 metrics" in note for note in found.notes)


def test_a_common_subset_leaves_out_models_that_an_attack_left_without_a_value():
    gap = model("d", {"em": 0.3, "uds": 0.8}, {"em": None, "uds": 0.8}, {"em": 0.4, "uds": 0.7})
    found = verdict([*MODELS, gap], common_subset=True)
    assert found.usable == {"em": ["a"], "uds": ["a"]}
    assert (found.counts["em"]["not_common"], found.counts["uds"]["not_common"]) == (1, 2)
    assert found.counts["em"]["lost"] == 0
    for counts in found.counts.values():
        assert counts["all"] == sum(counts[why] for why in ("undefined", "low_utility", "still_knows", "usable", "not_common"))  # fmt: skip


def test_a_metric_without_a_threshold_is_named():
    found = verdict(thresholds={"em": 0.6, "uds": None})
    assert any("no faithfulness threshold" in note and note.endswith(": uds") for note in found.notes)
    assert not any("no faithfulness threshold" in note for note in verdict().notes)


def test_the_one_directional_form_only_punishes_returning_knowledge():
    assert verdict(form="one-directional").metrics["em"].quantization == pytest.approx(0.75)


def test_a_retain_relative_attack_is_filtered_by_its_raw_attack():
    models = [
        RETAIN | {"before": {"mia_loss": 0.5, "s_mia_loss": 1.0}},
        model("a", {"mia_loss": 0.4, "s_mia_loss": 0.1}, {"mia_loss": 0.4, "s_mia_loss": 0.1}, None),
        model("b", {"mia_loss": 0.9, "s_mia_loss": 0.9}, {"mia_loss": 0.9, "s_mia_loss": 0.9}, None),
    ]
    found = verdict(
        models, ["mia_loss", "s_mia_loss"], attacks=("quantization",), thresholds={"mia_loss": 0.6, "s_mia_loss": 0.0},
        directions={"mia_loss": "two-sided", "s_mia_loss": "less knowledge"},
    )  # fmt: skip
    assert found.usable["s_mia_loss"] == ["a"]


def test_without_its_raw_attack_a_retain_relative_one_stands_alone(tmp_path):
    file = tmp_path / "numbers.csv"
    file.write_text("model,metric,attack,before,after\na,s_mia_loss,quantization,0.3,0.4\n")
    found = robustness_from_values(file, Rules(thresholds={"mia_loss": 0.1}))
    assert found.usable == {"s_mia_loss": ["a"]}
    assert any("no values of mia_loss" in note for note in found.notes)


def test_a_diverged_relearning_is_shown_counted_and_has_no_r():
    lost = model("d", {"em": 0.3, "uds": 0.8}, {"em": 0.3, "uds": 0.8}, None, diverged=True)
    found = verdict([*MODELS, lost])
    assert found.metrics["em"].quantization_n == 2
    assert found.metrics["em"].relearning_n == 1
    assert found.counts["em"]["diverged"] == 1
    assert found.summary()["diverged"] == ["d"]
    assert any("diverged for 1 model(s)" in note and "d" in note for note in found.notes)


def test_a_metric_missing_for_some_models_counts_them_as_undefined():
    gap = model("d", {"em": None, "uds": 0.8}, {"em": None, "uds": 0.8}, {"em": None, "uds": 0.7})
    found = verdict([*MODELS, gap])
    assert (found.counts["em"]["undefined"], found.counts["uds"]["undefined"]) == (1, 0)
    assert found.usable["em"] == ["a"]


def test_a_value_lost_in_an_attack_is_counted():
    gap = model("d", {"em": 0.3, "uds": 0.8}, {"em": None, "uds": 0.8}, {"em": 0.4, "uds": 0.7})
    found = verdict([*MODELS, gap])
    assert (found.counts["em"]["lost"], found.counts["uds"]["lost"]) == (1, 0)
    assert (found.metrics["em"].quantization_n, found.metrics["em"].relearning_n) == (1, 2)


def test_without_thresholds_a_note_says_so():
    found = verdict(thresholds=None)
    assert found.usable["em"] == ["a", "b"]
    assert any("no faithfulness thresholds" in note for note in found.notes)


def test_relearning_needs_retain():
    with pytest.raises(UsageError, match="retain"):
        verdict(MODELS[1:])


def test_a_robustness_folder_gives_the_same_verdict_again(tmp_path):
    found = verdict()
    found.save(tmp_path)
    assert {path.name for path in (tmp_path / "logs").iterdir()} == {"retain.log", "a.log", "b.log", "c.log"}
    again = Attacked.load(tmp_path)
    assert again.summary() == json.loads((tmp_path / "summary.json").read_text()) | {
        "metrics": again.summary()["metrics"]
    }
    assert again.metrics == found.metrics
    with pytest.raises(DataError, match="robustness"):
        Attacked.load(tmp_path / "logs")


def test_quantization_without_bitsandbytes_names_the_extra(monkeypatch):
    monkeypatch.setattr(attacks, "find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match=r"residuum\[quant\]"):
        attacks.check_attacks(["quantization"])
    assert attacks.check_attacks(["relearning"]) == ("relearning",)


def test_an_unknown_attack_is_refused():
    with pytest.raises(UsageError, match="relearning"):
        attacks.check_attacks(["relearn"])


# Pools


def test_a_metric_missing_for_most_models_is_left_out_with_the_reason():
    found = pools()
    found.models[0]["metrics"]["es"] = 0.5
    again = judge(found.models, ["em", "es"], against="em", settings={})
    assert list(again.metrics) == ["em"]
    assert "at least two" in again.left_out["es"]


def test_a_constant_metric_is_judged_but_marked():
    found = pools(es=0.5)
    assert found.metrics["es"].constant
    assert found.metrics["es"].auc == 0.5


def test_every_metric_is_compared_with_the_chosen_one():
    [pair] = pools(es=0.5).comparisons
    assert (pair["first"], pair["second"], pair["difference"]) == ("em", "es", 0.5)


def test_a_faithfulness_folder_gives_the_same_verdict_again(tmp_path):
    found = pools(es=0.5)
    found.save(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} >= {"summary.json", "results.json", "logs"}
    assert Pools.load(tmp_path).metrics == found.metrics
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["metrics"]["em"]["auc"] == 1.0
    assert summary["pools"] == {"P": 2, "N": 2}


def test_histograms_are_drawn_when_matplotlib_is_there(tmp_path):
    pytest.importorskip("matplotlib")
    pools(es=0.5).save(tmp_path)
    assert {path.name for path in (tmp_path / "histograms").iterdir()} == {"em.png", "es.png"}


@pytest.mark.parametrize(
    ("p", "n", "said"),
    [
        (["org/a"], ["org/b", "org/c"], "pool P has 1 model"),
        (["org/a", "org/b"], ["org/b", "org/c"], "both pools"),
        (["org/a", "org/a"], ["org/b", "org/c"], "twice"),
    ],
)
def test_bad_pools_are_refused_before_any_model_is_loaded(p, n, said):
    with pytest.raises(UsageError, match=said):
        check_pools(p, n)
    assert call("meta", "faithfulness", "--pool-p", ",".join(p), "--pool-n", ",".join(n)) == 2


def test_an_unknown_metric_to_compare_with_is_refused():
    assert call("meta", "faithfulness", "--pool-p", "org/a,org/b", "--pool-n", "org/c,org/d", "--compare", "udss") == 2


# Lists of models


def test_lists_are_published_names_commas_or_files(tmp_path):
    assert read_models("published", POOL_P) == list(POOL_P)
    assert len(POOL_P) == len(POOL_N) == 30
    assert len(subset_150()) == 150
    assert read_models("npo, org/x", []) == ["npo", "org/x"]
    file = tmp_path / "list.txt"
    file.write_text("npo  # the alias\n\norg/x\n")
    assert read_models(str(file), []) == ["npo", "org/x"]
    file.write_text("# nothing\n")
    with pytest.raises(DataError, match="names no model"):
        read_models(str(file), [])
    with pytest.raises(UnknownName):
        read_models("npoo", [])
    assert read_models(",".join(["npo"] * 2000), []) == ["npo"] * 2000, "longer than any file's name"
    file.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(DataError, match="no readable list"):
        read_models(str(file), [])


def test_models_of_one_short_name_keep_their_whole_name():
    assert labels(["one/x", "two/x", "two/y"]) == ["one/x", "two/x", "y"]


# Table


def test_the_table_joins_both_and_ranks_by_overall():
    table = Table(pools(es=0.5), verdict())
    rows = {row["metric"]: row for row in table.rows()}
    assert list(rows) == ["em", "es", "uds"]
    em = rows["em"]
    assert em["overall"] == pytest.approx(harmonic_mean(em["auc"], em["HM"]))
    assert (em["n_p"], em["n_n"], em["usable"]) == (2, 2, 1)
    assert rows["uds"]["auc"] is None
    assert "says nothing" in rows["es"]["notes"][0]


def test_an_overall_of_zero_ranks_below_every_other_and_what_was_left_out_has_a_row():
    found = pools(es=0.5)
    found.left_out["rouge"] = "too few"
    back = [RETAIN, model("a", {"em": 0.3, "es": 0.3}, {"em": 0.3, "es": 0.3}, {"em": 0.2, "es": 0.4})]
    back[0] = RETAIN | {
        "before": {"em": 0.2, "es": 0.2},
        "after": {"quantization": None, "relearning": {"em": 0.3, "es": 0.3}},
    }
    rows = Table(found, verdict(back, ["em", "es"], directions={"em": "more knowledge", "es": "more knowledge"})).rows()
    assert [row["metric"] for row in rows] == ["es", "em", "rouge"]
    assert rows[1]["overall"] == pytest.approx(0.0, abs=1e-4)
    assert rows[1]["auc"] == 1.0
    assert rows[2]["notes"] == ["too few"]
    rows[1]["overall"] = 0.0
    assert _rank(rows[0]) < _rank(rows[1]) < _rank(rows[2])


def test_the_page_is_whole_escaped_and_needs_nothing_else(tmp_path):
    evil = "<script>alert(1)</script>"
    models = [{**m, "model": evil if m["model"] == "a" else m["model"]} for m in MODELS]
    models.append(model(f"{evil}&", {"em": 0.3, "uds": 0.8}, {"em": 0.3, "uds": 0.8}, None, diverged=True))
    Table(pools(), verdict(models)).save(tmp_path)
    page = (tmp_path / "table2.html").read_text()
    tags: list[str] = []

    class Reader(HTMLParser):
        def handle_starttag(self, tag, attrs):
            tags.append(tag)
            assert not {"src", "href"} & {name for name, _ in attrs}

    Reader().feed(page)
    assert "script" not in tags
    assert "&lt;script&gt;" in page
    assert tags.count("tr") == 3
    lines = (tmp_path / "table2.csv").read_text().splitlines()
    assert lines[0].startswith("metric,auc,auc_low,auc_high,Q,")
    assert len(lines) == 3
    assert {row["metric"] for row in json.loads((tmp_path / "table2.json").read_text())["rows"]} == {"em", "uds"}


def test_a_table_is_made_from_two_finished_folders(tmp_path, capsys):
    pools(uds=0.5).save(tmp_path / "f")
    verdict().save(tmp_path / "r")
    words = ["meta", "table", "--faithfulness", tmp_path / "f", "--robustness", tmp_path / "r", "--json"]
    assert call(*words) == 0
    assert {row["metric"] for row in json.loads(capsys.readouterr().out)["rows"]} == {"em", "uds"}
    assert (tmp_path / "r" / "table2.html").exists()
    assert call(*words, "--common-subset") == 0
    assert json.loads(capsys.readouterr().out)["common_subset"] is True
    assert call(*words, "--metrics", "uds") == 0
    assert [row["metric"] for row in json.loads(capsys.readouterr().out)["rows"]] == ["uds"]
    assert call("meta", "table", "--faithfulness", tmp_path / "f") == 2


def test_a_table_of_finished_folders_judges_anew_as_asked_and_with_the_thresholds_of_its_pools(tmp_path, capsys):
    pools(uds=0.5).save(tmp_path / "f")
    verdict(thresholds=None).save(tmp_path / "r")
    words = ["meta", "table", "--faithfulness", tmp_path / "f", "--robustness", tmp_path / "r", "--json"]
    assert call(*words) == 0
    rows = {row["metric"]: row for row in json.loads(capsys.readouterr().out)["rows"]}
    assert rows["em"]["usable"] == 1, "b lies above the threshold of the pools"
    assert call(*words, "--form", "one-directional", "--utility-floor", 0.4) == 0
    shown = json.loads(capsys.readouterr().out)
    rows = {row["metric"]: row for row in shown["rows"]}
    assert (shown["form"], shown["utility"]["floor"], rows["em"]["usable"]) == ("one-directional", 0.4, 2)
    assert rows["em"]["Q"] == pytest.approx((0.75 + 1.0) / 2)
    assert call(*words, "--metrics", "rouge") == 2
    assert "has no values of rouge" in capsys.readouterr().err
    assert call(*words, "--models", "npo") == 2
    assert "--models would do nothing" in capsys.readouterr().err


def test_folders_of_other_data_are_joined_with_a_warning(tmp_path, capsys):
    pools(uds=0.5).save(tmp_path / "f")
    found = verdict()
    found.settings["data"] = "elsewhere"
    found.save(tmp_path / "r")
    assert call("meta", "table", "--faithfulness", tmp_path / "f", "--robustness", tmp_path / "r") == 0
    assert "differ in data" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["table", "--form", "symetric"], "form is one of"),
        (["table", "--attack", "relearn"], "attack is one of"),
        (["table", "--metrics", "emm"], "unknown metric"),
        (["table", "--methods", "npoo"], "unknown method"),
        (["table", "--pool-p", "org/a,org/b"], "both --pool-p and --pool-n"),
        (["table", "--full-model", "npo"], "--full-model would do nothing"),
        (["table", "--metrics", "em", "--compare", "es"], "not among the --metrics"),
        (["table", "--size", "1"], "size"),
        (["robustness", "--workers", "0"], "workers"),
    ],
)
def test_mistakes_are_seen_before_any_model_is_made(monkeypatch, capsys, words, said):
    monkeypatch.setattr("residuum.meta.embedded.find_world", lambda given: pytest.fail("a world was built"))
    assert call("meta", *words, "--world", "tiny") == 2
    assert said in capsys.readouterr().err


def test_options_of_a_world_are_refused_without_one(capsys):
    assert call("meta", "robustness", "--methods", "npo") == 2
    assert "--methods would do nothing without --world" in capsys.readouterr().err


# Values from a table of numbers

GOOD = """model,metric,attack,before,after,utility_rel
a,em,quantization,0.3,0.4,0.9
a,em,relearning,0.3,0.5,0.9
b,em,quantization,0.4,0.4,0.5
b,em,relearning,0.4,0.5,0.5
retain,em,quantization,0.2,0.2,
retain,em,relearning,0.2,0.3,
"""


def test_numbers_from_a_file_give_the_same_as_models(tmp_path, capsys):
    file = tmp_path / "numbers.csv"
    file.write_text(GOOD)
    assert call("meta", "robustness", "--from-values", file, "--out", tmp_path / "out", "--json") == 0
    em = json.loads(capsys.readouterr().out)["metrics"]["em"]
    assert em["Q"] == pytest.approx(quantization_score(0.3, 0.4))
    assert em["R"] == pytest.approx(relearning_score(0.2, 0.1))
    assert em["HM"] == pytest.approx(harmonic_mean(em["Q"], em["R"]))
    assert em["counts"]["low_utility"] == 1
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"summary.json", "results.json", "logs"}


def test_a_part_of_the_numbers_is_judged_when_asked_for(tmp_path, capsys):
    file = tmp_path / "numbers.csv"
    file.write_text(GOOD + "a,es,quantization,0.2,0.2,0.9\n")
    words = ["meta", "robustness", "--from-values", file, "--out", tmp_path / "out", "--json"]
    assert call(*words, "--metrics", "es", "--attack", "quantization") == 0
    summary = json.loads(capsys.readouterr().out)
    assert (list(summary["metrics"]), summary["attacks"]) == (["es"], ["quantization"])
    assert call(*words, "--metrics", "rouge") == 2
    assert call(*words, "--attack", "quantisation") == 2
    assert call(*words, "--models", "npo") == 2
    file.write_text("model,metric,attack,before,after\na,em,quantization,0.3,0.4\n")
    capsys.readouterr()
    assert call(*words, "--attack", "relearning") == 2
    assert "no values after relearning" in capsys.readouterr().err


def test_thresholds_may_come_from_a_file(tmp_path, capsys):
    numbers, thresholds = tmp_path / "numbers.csv", tmp_path / "t.json"
    numbers.write_text(GOOD)
    thresholds.write_text('{"metrics": {"em": {"threshold": 0.25}}}')
    words = ["meta", "robustness", "--from-values", numbers, "--faithfulness", thresholds, "--out", tmp_path, "--json"]
    assert call(*words) == 0
    assert json.loads(capsys.readouterr().out)["metrics"]["em"]["counts"]["still_knows"] == 1
    for bad in ("{}", '{"metrics": {"em": {"threshold": NaN}}}'):
        thresholds.write_text(bad)
        assert call(*words) == 2


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "column model"),
        ("model,metric,attack,before\n", "column after"),
        ("model,metric,attack,before,after\n", "no rows"),
        (GOOD.replace("0.3,0.4", "0.3,many"), "numbers.csv:2, field 'after': 'many' is not a number"),
        (GOOD.replace("0.3,0.4", "0.3,nan"), "not a number"),
        (GOOD.replace("a,em,quant", "a,emm,quant"), "numbers.csv:2, field 'metric'"),
        (GOOD.replace("relearning,0.3", "relearn,0.3"), "numbers.csv:3, field 'attack'"),
        (GOOD.replace("retain", "other"), "no model called 'retain'"),
        (GOOD.replace("a,em,relearning,0.3", "a,em,relearning,0.31"), "another em before"),
        (GOOD + "a,em,quantization,0.3,0.4,0.9\n", "twice"),
        (GOOD + ",em,quantization,0.3,0.4,0.9\n", "numbers.csv:8, field 'model'"),
        (GOOD.replace("0.3,0.5,0.9", "0.3,0.5,0.7"), "numbers.csv:3, field 'utility_rel'"),
        (GOOD + "a,model_utility,quantization,0.3,0.4,0.9\n", "does not say how much"),
        ("model,metric,attack,before,after,higher_means\na,em,quantization,0,0,less knowledge\n", "em means more"),
        ("model,metric,attack,before,after\n" + "x" * 200_000 + ",em,quantization,0,0\n", "cannot be read"),
    ],
)
def test_bad_numbers_are_refused_with_file_line_and_field(tmp_path, text, said):
    file = tmp_path / "numbers.csv"
    file.write_text(text)
    with pytest.raises(DataError, match=said.replace("(", r"\(")):
        robustness_from_values(file, Rules())
    assert call("meta", "robustness", "--from-values", file, "--out", tmp_path / "out") == 2


def test_an_unknown_metric_is_welcome_with_its_direction(tmp_path):
    file = tmp_path / "numbers.csv"
    file.write_text("model,metric,attack,before,after,higher_means\na,mine,quantization,0.3,0.4,less knowledge\n")
    found = robustness_from_values(file, Rules())
    assert found.metrics["mine"].quantization == pytest.approx(quantization_score(0.7, 0.6))
