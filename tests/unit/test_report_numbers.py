"""Every number on the page is the store's, to the digits shown: the page is read back section by section."""

from __future__ import annotations

import json
from statistics import fmean

import pytest

from pages import built
from reportable import make_store
from residuum.report.findings import Findings
from residuum.rtt.artefacts import read_rows
from residuum.store import Store


@pytest.fixture(scope="module")
def evaluations(store):
    """Records by model and metric; UDS from the run folder, which speaks for itself."""
    found = {unit.value["model"]: dict(unit.value["metrics"]) for unit in Store(store).units("evaluation")}
    for name, metrics in found.items():
        summary = json.loads((store / f"uds_{name}" / "summary.json").read_text())
        metrics["uds"] = {"value": summary["avg_uds"], "ci95": summary["ci95"]}
    return found


@pytest.fixture
def small(tmp_path):
    return make_store(tmp_path / "runs", parts=False)


def told(value, digits=3):
    return "–" if value is None else f"{value:.{digits}f}"


def ends(pair, digits=3):
    return f"{pair[0]:.{digits}f} to {pair[1]:.{digits}f}"


def block(blocks, name):
    return next(one for one in blocks if name in (one.get("name"), one["block"]))


def test_verdict(page, evaluations):
    cards = page.cards()
    assert {title for title, _ in cards} == set(evaluations)
    for title, meters in cards:
        wanted = [evaluations[title][key] for key in ("uds", "mem", "privacy", "utility_rel")]
        assert meters == [(told(record["value"]), ends(record["ci95"])) for record in wanted]


def test_benchmark(page, evaluations):
    shown = list(zip(page.rows("benchmark"), page.intervals("benchmark"), strict=True))
    assert len(shown) == len(evaluations) == 5
    for row, intervals in shown:
        for metric, record in evaluations[row["model"]].items():
            assert (row[metric], intervals[metric]) == (told(record["value"]), ends(record["ci95"]))


def test_depth_of_all_models(page, evaluations):
    chart = next(chart for chart in page.charts() if chart["name"] == "uds-overview")
    points = [point for series in chart["series"] for point in series["points"]]
    assert len(points) == 5
    for _, *numbers, name in points:
        record = evaluations[name]["uds"]
        assert [told(number) for number in numbers] == [told(number) for number in (record["value"], *record["ci95"])]


def test_depth_of_each_model(page, store, evaluations):
    for name, blocks in page.options("depth").items():
        record = evaluations[name]["uds"]
        assert f"UDS {told(record['value'])} ({ends(record['ci95'])})" in block(blocks, "text")["text"][0]
        rows = json.loads((store / f"uds_{name}" / "profile.json").read_text())
        for stage, series in zip(("s1", "s2"), block(blocks, "depth-profile")["series"], strict=True):
            wanted = [[r["layer"], *(round(r[f"{stage}_{end}"], 3) for end in ("delta", "low", "high"))] for r in rows]
            assert series["points"] == wanted


def test_depth_of_each_example(page, store):
    packs = page.packs()
    for name, blocks in page.options("depth").items():
        shown, heat = block(blocks, "examples"), block(blocks, "depth-heat")
        lines = (store / f"uds_{name}" / "results_detailed.jsonl").read_text().splitlines()
        cells = dict(zip(heat["x"]["names"], zip(*heat["values"], strict=True), strict=True))
        depths = []
        for i, record in enumerate(map(json.loads, lines)):
            assert [told(v) for v in shown["second"][i]] == [told(v) for v in record["s2_deltas"]]
            assert [told(v) for v in packs[shown["first"]][i]] == [told(v) for v in record["s1_deltas"]]
            assert told(shown["uds"][i]) == told(record["uds"])
            assert (packs[shown["texts"]][i][1], shown["held"][i]) == (record["question"], record["ft_layers"])
            for layer, share in enumerate(cells[str(record["idx"])]):
                kept = record["s2_deltas"][layer] / record["s1_deltas"][layer] if layer in record["ft_layers"] else None
                assert told(share, 2) == told(None if kept is None else min(max(kept, 0), 1), 2)
            depths += [] if record["uds"] is None else [record["uds"]]
        counts = block(blocks, "uds-histogram")["series"][0]["counts"]
        bins = [min(int(min(max(depth, 0), 1) * len(counts)), len(counts) - 1) for depth in depths]
        assert counts == [bins.count(i) for i in range(len(counts))]


def test_thresholds(page, store):
    from residuum.patching.sensitivity import tau_table

    for name, blocks in page.options("depth").items():
        folder = store / f"uds_{name}"
        lines = (folder / "results_detailed.jsonl").read_text().splitlines()
        (folder / "results.json").write_text(f"[{','.join(lines)}]")
        shown = block(blocks, "table")["rows"]
        wanted = tau_table(folder, [float(row[0]) for row in shown])
        (folder / "results.json").unlink()
        assert [tuple(row[1:4]) for row in shown] == [
            (told(w["uds"]), ends((w["low"], w["high"])), str(w["n"])) for w in wanted
        ]
        series = block(blocks, "tau")["series"][0]["points"]
        assert [[told(number) for number in point[1:]] for point in series] == [
            [told(w[key]) for key in ("uds", "low", "high")] for w in wanted
        ]


def test_trade_off(page, evaluations):
    charts = {chart["name"]: chart for chart in page.charts()}
    points = [point for series in charts["trade-off"]["series"] for point in series["points"]]
    assert {point[2] for point in points} == set(evaluations)
    for x, y, name, *intervals in points:
        utility, depth = evaluations[name]["utility_rel"], evaluations[name]["uds"]
        wanted = (utility["value"], depth["value"], *utility["ci95"], *depth["ci95"])
        assert [told(number) for number in (x, y, *intervals)] == [told(number) for number in wanted]
    methods = {series["name"]: sum(series["counts"]) for series in page.options("spread")["by method"][0]["series"]}
    assert methods == {
        name: sum(sum(block(blocks, "uds-histogram")["series"][0]["counts"]) for model, blocks in page.options("depth").items() if model.startswith(name))
        for name in methods
    }  # fmt: skip


def test_layers_by_method(page, store):
    chart = next(chart for chart in page.charts() if chart["name"] == "layers-by-method")
    for series in chart["series"]:
        stage, name = ("s1", "npo") if series["colour"] == "ink" else ("s2", series["name"])
        profile = json.loads(next(store.glob(f"uds_{name}_*/profile.json")).read_text())
        assert [point[1] for point in series["points"]] == [round(row[f"{stage}_delta"], 3) for row in profile]


def test_meta_evaluation(page, store):
    wanted = {row["metric"]: row for row in json.loads((store / "meta_eval" / "table2.json").read_text())["rows"]}
    shown = list(zip(page.rows("table2"), page.intervals("table2"), strict=True))
    assert {row["metric"] for row, _ in shown} == set(wanted)
    for row, intervals in shown:
        own = wanted[row["metric"]]
        for number in ("auc", "Q", "R", "HM", "overall"):
            assert row[number] == told(own[number])
            assert intervals.get(number) == (ends(own[f"{number}_ci95"]) if own.get(f"{number}_ci95") else None)


def test_pools_and_attacked_models(page, store):
    members = json.loads((store / "faithfulness" / "results.json").read_text())
    for metric, blocks in page.options("pools").items():
        chart = block(blocks, "pools")
        values = {
            pool: [m["metrics"][metric] for m in members if m["pool"] == pool and m["metrics"][metric] is not None]
            for pool in ("N", "P")
        }
        edges = chart["edges"]
        for series, own in zip(chart["series"], values.values(), strict=True):
            known = [1 - value if metric == "uds" else value for value in own]
            assert sum(series["counts"]) == len(known) == 6
            assert min(known) >= edges[0] - 1e-6
            assert max(known) <= edges[-1] + 1e-6
    attacked = {row["model"]: row for row in json.loads((store / "meta_eval" / "results.json").read_text())}
    for metric, blocks in page.options("robustness").items():
        for series in block(blocks, "robustness")["series"]:
            attack = series["name"].removeprefix("retain, ")
            for before, after, name, *_ in series["points"]:
                pair = attacked[name]["before"][metric], attacked[name]["after"][attack][metric]
                assert [told(before), told(after)] == [told(1 - v if metric == "uds" else v) for v in pair]


def test_rtt(page, store):
    rows = {row["model_path"].rpartition("/")[2]: row for row in read_rows(store / "evals" / "pipeline" / "summary")}
    shown = list(zip(page.rows("rtt"), page.intervals("rtt"), strict=True))
    assert {row["model"] for row, _ in shown} == set(rows) == set(page.options("rtt"))
    numbers = [key for key in shown[0][0] if key not in ("model", "status")]
    for row, intervals in shown:
        own = rows[row["model"]]
        for key in numbers:
            assert row[key] == told(own[key])
            low, high = own["ci_low"].get(key), own["ci_high"].get(key)
            assert intervals.get(key) == (None if low is None else ends((low, high)))
    bars = next(chart for chart in page.charts() if chart["name"] == "rtt-bars")
    for series, key in zip(bars["series"], numbers, strict=False):
        own = [rows[name] for name in bars["groups"]]
        assert series["values"] == [[round(v, 3) for v in (r[key], r["ci_low"][key], r["ci_high"][key])] for r in own]


def test_recovery_curves_and_held_out_splits(page, store):
    rows = {row["model_path"].rpartition("/")[2]: row for row in read_rows(store / "evals" / "pipeline" / "summary")}
    for name, blocks in page.options("rtt").items():
        for series in block(blocks, "recovery")["series"]:
            own = [point for point in rows[name]["curve"] if point[0] == series["name"][0]]
            assert series["points"] == [[epoch, *(round(v, 3) for v in numbers)] for _, epoch, *numbers in own]
        best = rows[name]["best_per_v_b"]
        shown = [row for row in block(blocks, "table")["rows"] if row[0].startswith("B")]
        assert [(row[1], row[2]) for row in shown] == [(split, told(found["acc"])) for split, found in best.items()]


def test_probes(page, store):
    files = [json.loads(path.read_text()) for path in store.glob("probes/*/*.json")]
    shown = list(zip(page.rows("probes"), page.intervals("probes"), files, strict=True))
    for row, intervals, probe in shown:
        assert [row[key] for key in ("original", "unlearned", "steered")] == [
            told(probe["accuracy"][key]) for key in ("original", "unlearned", "steered")
        ]
        assert (row["recovery"], intervals["recovery"]) == (told(probe["recovery"]), ends(probe["recovery_ci95"]))
        assert (row["random"], row["retain"]) == (told(probe["random"]["p95"]), told(probe["retain_recovery"]))
        assert (row["guessing"], intervals["guessing"]) == (
            told(probe["beyond_guessing"]), ends(probe["beyond_guessing_ci95"]),
        )  # fmt: skip
        blocks = page.options("probe-texts")[f"{row['probe']} on {row['model']}"]
        assert block(blocks, "table")["rows"][0] == [
            probe["texts"][0][key] for key in ("question", "truth", "before", "after")
        ]


def test_traits(page, store):
    units = [unit for unit in Store(store).units("steer") if unit.task.spec["run"] and not unit.value.get("control_of")]
    wanted = {
        (str(u.task.spec["run"]["layers"][0]), f"{u.task.spec['run']['coefficients'][0]:.4g}"): u.value["result"]
        for u in units
    }
    (blocks,) = page.options("traits").values()
    for what in ("trait", "coherence"):
        chart = block(blocks, f"steering-{what}")
        cells = {
            (layer, c): value
            for layer, row in zip(chart["y"]["names"], chart["values"], strict=True)
            for c, value in zip(chart["x"]["names"], row, strict=True)
        }
        assert cells == {place: round(result[f"{what}_mean"], 1) for place, result in wanted.items()}
    points = next(s for s in block(blocks, "trait-coherence")["series"] if s["name"] == "steered")["points"]
    assert sorted((p[0], p[1], p[5], p[6]) for p in points) == sorted(
        (r["coherence_mean"], r["trait_mean"], *r["ci95"]) for r in wanted.values()
    )
    best = max(wanted.values(), key=lambda result: (result["coherence_mean"] >= 70, result["trait_mean"]))
    assert fmean(float(row[4]) for row in block(blocks, "table")["rows"]) == best["trait_mean"]


def test_provenance(page, store):
    runs = page.rows("runs")
    for unit in Store(store).units("evaluation"):
        row = next(row for row in runs if unit.task.key[:16] in row["run"])
        assert row["seed"] == str(unit.provenance["seed"])
        assert unit.provenance["data"]["forget10_perturbed"][:12] in row["hashes"]
        assert f"residuum {unit.version}" in row["versions"]
        assert row["command"].startswith(unit.provenance["command"][0])


def test_a_sweep_of_rtt_can_be_traced_to_its_training(page, store):
    units = {unit.provenance["settings"]["model"].rpartition("/")[2]: unit for unit in Store(store).units("rtt-epoch")}
    rows = [row for row in page.rows("runs") if row["kind"] == "rtt"]
    assert {row["model"] for row in rows} == set(units)
    for row in rows:
        origin = units[row["model"]].provenance
        assert (row["seed"], row["command"] != "–", "unknown" in row["versions"]) == ("7", True, False)
        assert f"weights {origin['weights'][:12]}; data {origin['data'][:12]}" == row["hashes"]


@pytest.mark.parametrize("choice", ["depth", "pools", "robustness", "rtt", "probe-texts", "traits"])
def test_what_is_chosen_links_to_its_run(page, choice):
    for blocks in page.options(choice).values():
        assert {one["source"] for one in blocks if one["block"] == "text" and one["source"]} & page.ids


def test_a_run_without_its_profile_and_lines_shows_the_same(small, tmp_path):
    name = "npo_lr1e5_b01_a5_ep5"
    folder = small / f"uds_{name}"
    first = built(small, tmp_path).packs()["depth-1"]
    lines = (folder / "results_detailed.jsonl").read_text().splitlines()
    (folder / "results.json").write_text(f"[{','.join(lines)}]")
    (folder / "results_detailed.jsonl").unlink()
    wanted = json.loads((folder / "profile.json").read_text())
    (folder / "profile.json").unlink()
    run = Findings([small]).find(name=name).depth
    assert run.profile == wanted
    assert built(small, tmp_path).packs()["depth-1"] == first


def test_values_that_are_equal_up_to_rounding_have_a_histogram():
    from residuum.report.meta import pool_histogram

    pools = {"em": {"P": [0.5, 0.5 + 1e-16], "N": [0.5]}}
    found = {"directions": {"em": "more knowledge"}, "thresholds": {}, "pools": pools, "auc:em": 0.5}
    assert [sum(series["counts"]) for series in pool_histogram(found, "em").spec["series"]] == [1, 2]
