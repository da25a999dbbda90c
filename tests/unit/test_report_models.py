"""Which models and runs are on the page, and under which name."""

from __future__ import annotations

import json

import pytest

from pages import built
from reportable import (
    depth_result,
    make_store,
    model,
    put_attack,
    put_evaluation,
    save_depth,
    scores,
    write_probe,
    write_rtt,
)
from residuum.report.findings import Findings
from residuum.report.gates import parse_gates
from residuum.report.probes import read_probes
from residuum.store import Store


@pytest.fixture
def small(tmp_path):
    return make_store(tmp_path / "runs", parts=False)


def test_two_stores_make_one_page(small, tmp_path):
    other = tmp_path / "other"
    put_evaluation(Store(other), "undial_lr1e4_b10_a5_ep5", scores(0.3))
    page = built([small, other], tmp_path)
    assert len(page.rows("benchmark")) == 6


def test_models_of_one_name_and_different_weights_are_told_apart(small, tmp_path):
    name = "npo_lr1e5_b01_a5_ep5"
    result = depth_result(name, share=0.9)
    result.models["unlearned"].update(weights="f" * 64)
    save_depth(result, small / "uds_again")
    names = [row["model"] for row in built(small, tmp_path).rows("benchmark")]
    assert sum(shown.startswith(f"{name} [") for shown in names) == 2


def test_probes_and_rtt_belong_to_the_weights_they_were_made_with(tmp_path):
    root, name = tmp_path / "runs", "npo"
    save_depth(depth_result(name), root / "uds_old")
    again = depth_result(name, share=0.9)
    again.models["unlearned"].update(weights="f" * 64)
    save_depth(again, root / "uds_new")
    write_probe(root, name)
    write_rtt(root, [name])
    findings = Findings([root])
    old, new = (findings.find(weights=weights) for weights in (model(name)["weights"], "f" * 64))
    for gate in parse_gates("steering.recovery<2,rtt.gap_closed<2"):
        assert gate.check(findings, old)["met"]
        assert gate.check(findings, new)["value"] is None


def test_a_probe_of_weights_that_no_model_has_belongs_to_the_one_of_its_name(tmp_path):
    result = depth_result("npo")
    result.models["unlearned"].update(weights="f" * 64)  # hashed as a file, where the probe had the model in memory
    save_depth(result, tmp_path / "uds_npo")
    write_probe(tmp_path, "npo")
    findings = Findings([tmp_path])
    (gate,) = parse_gates("steering.recovery<2")
    assert gate.check(findings, findings.find(name="npo"))["met"]


def test_two_probes_of_one_name_have_labels_of_their_own(tmp_path):
    write_probe(tmp_path, "npo")
    file = tmp_path / "probes" / "npo" / "model_diff.json"
    other = tmp_path / "probes" / "npo-ffffffff" / "model_diff.json"
    other.parent.mkdir()
    other.write_text(json.dumps({**json.loads(file.read_text()), "weights": "f" * 64}))
    assert len({probe["label"] for probe in read_probes(Findings([tmp_path]))}) == 2


def test_pool_models_and_attacked_copies_are_no_models_under_test(tmp_path):
    root = make_store(tmp_path / "runs")
    copy, own = (
        model("npo-0123456789ab", source="runs/relearned/npo-0123456789ab"),
        model("mine", source="my/relearned/mine"),
    )
    for found in (copy, own):
        put_evaluation(Store(root), found["name"], scores(0.4), models={"model": found})
    put_attack(Store(root), "npo", "relearning", {"em": 0.9}, evaluated=copy)
    names = [found.name for found in Findings([root]).models]
    assert copy["name"] not in names
    assert own["name"] in names  # where a folder lies says nothing about what it is
    assert not any(name.startswith(("P", "N")) for name in names)


def test_a_model_that_an_attack_leaves_as_it_was_stays_on_the_page(small):
    name = "npo_lr1e5_b01_a5_ep5"
    put_attack(Store(small), name, "relearning", {"em": 0.5}, evaluated={**model(name), "name": f"{name}-0123456789ab"})
    assert Findings([small]).find(name=name).value("em").value == 0.5


def test_a_rounded_model_is_told_from_the_plain_one(tmp_path):
    result = depth_result("npo")
    save_depth(result, tmp_path / "runs" / "uds_npo")
    result.models["unlearned"].update(quantize="nf4")
    save_depth(result, tmp_path / "runs" / "uds_npo_nf4")
    names = [found.name for found in Findings([tmp_path / "runs"]).models]
    weights = result.models["unlearned"]["weights"][:8]
    assert sorted(names) == [f"npo [{weights} nf4]", f"npo [{weights}]"]


def test_a_metric_asked_later_joins_the_earlier_ones(small, tmp_path):
    name = "npo_lr1e5_b01_a5_ep5"
    put_evaluation(Store(small), name, {"em": 0.123456})
    row = next(row for row in built(small, tmp_path).rows("benchmark") if row["model"] == name)
    assert (row["em"], row["es"]) == ("0.123", "0.250")


def test_a_published_table_stands_beside_own_runs(small, tmp_path):
    table = {"models": [
        {"model": "full", "method": "full", "epoch": "ep10", "alpha": None, "lr": None, "uds": 0.0, "mem": 0.1, "utility_rel": 1.0, "one_minus_es": 0.3},
        {"model": "npo_lr2e5_b01_a1_ep5", "method": "npo", "epoch": "ep5", "alpha": 1, "lr": 2e-5, "uds": 0.5, "mem": 0.4, "utility_rel": 0.9, "s_loss": 0.2},
    ]}  # fmt: skip
    (tmp_path / "t.json").write_text(json.dumps(table))
    page = built(small, tmp_path, published=tmp_path / "t.json")
    rows = {row["model"]: row for row in page.rows("benchmark")}
    assert len(rows) == 7
    assert rows["full"]["es"] == "0.700"
    assert (rows["npo_lr2e5_b01_a1_ep5"]["s_mia_loss"], rows["npo_lr2e5_b01_a1_ep5"]["lr"]) == ("0.200", "2e-05")


def test_the_152_published_rows_are_all_on_the_page(shared_data, tmp_path):
    path = shared_data / "published" / "published_method_results.json"
    wanted = json.loads(path.read_text())["models"]
    page = built([], tmp_path, published=path)
    rows = {row["model"]: row for row in page.rows("benchmark")}
    assert len(rows) == len(wanted) == 152
    assert all(rows[row["model"]]["uds"] == f"{row['uds']:.3f}" for row in wanted)


def test_values_after_an_attack_without_a_run_of_the_model_itself_do_no_harm(tmp_path, small):
    put_attack(Store(small), "unseen", "quantization", {"em": 0.5})
    assert "unseen" not in [row["model"] for row in built(small, tmp_path).rows("benchmark")]


def test_a_run_of_metric_em_is_shown_without_deltas(tmp_path):
    from dataclasses import replace

    from residuum.patching.audit import UdsConfig
    from residuum.patching.depth import DepthRules, measure_depth

    result = depth_result("npo")
    rules = DepthRules(metric="em")
    examples = [measure_depth(i, [0, 1], 1.0, [1.0, 0.5], [1.0, 0.5 * (i % 2)], rules) for i in range(6)]
    save_depth(replace(result, examples=examples, config=UdsConfig(rules=rules)), tmp_path / "runs" / "uds_npo")
    page = built(tmp_path / "runs", tmp_path)
    shown = next(block for block in page.packs()["depth-0"] if block["block"] == "examples")
    assert (shown["what"], shown["second"][1]) == ("EM", [1.0, 0.5])
    assert "metric em" in page.source


def test_a_store_below_a_folder_called_archive_is_read_whole(tmp_path):
    plain, inside = Findings([make_store(tmp_path / "plain")]), Findings([make_store(tmp_path / "archive" / "runs")])
    assert [len(one.depths) for one in inside.models] == [len(one.depths) for one in plain.models]
    assert any(one.depths for one in inside.models)
