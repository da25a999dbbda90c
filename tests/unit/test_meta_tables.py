"""Directions, pools, lists of models, tables and pages; no model is loaded."""

from __future__ import annotations

import json
from html.parser import HTMLParser

import pytest

from attackable import MODELS, RETAIN, model, pools, verdict
from commanding import call
from residuum.errors import DataError, UnknownName, UsageError
from residuum.meta.catalogue import TABLE, choose
from residuum.meta.faithfulness import in_knowledge_direction
from residuum.meta.folder import labels, read_models
from residuum.meta.pools import Pools, check_pools, judge
from residuum.meta.robustness import (
    harmonic_mean,
)
from residuum.meta.table import Table, _rank
from residuum.models.names import POOL_N, POOL_P, subset_150

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
