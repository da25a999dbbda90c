"""The report from stores alone: what is on the page, what is not, and that every number is the store's."""

from __future__ import annotations

import base64
import gzip
import json
import re
import shutil
import sys
from html.parser import HTMLParser

import pytest

from reportable import HOSTILE, depth_result, make_store, model, put_attack, put_evaluation, save_depth, scores
from residuum.errors import InputError, StoreError
from residuum.report.build import build_report
from residuum.report.findings import Findings
from residuum.store import Store, Task


class Page(HTMLParser):
    """A page as a reader has it: ids, links, cells of tables, packed data, texts outside of scripts."""

    def __init__(self, path) -> None:
        super().__init__()
        self.ids, self.links, self.tables, self.scripts, self.text = set(), [], {}, [], ""
        self._table, self._cell, self._script, self._head = None, None, None, None
        self.source = path.read_text(encoding="utf-8")
        self.feed(self.source)

    def handle_starttag(self, tag, attrs):
        known = dict(attrs)
        self.ids |= {known["id"]} if "id" in known else set()
        if tag == "a":
            self.links.append(known["href"])
        elif tag == "script":
            self._script = (known.get("type"), known.get("id"), known.get("class"))
            self.scripts.append([*self._script, ""])
        elif "data-table" in known:
            self._table = self.tables.setdefault(known["data-table"], {"columns": [], "rows": []})
        elif tag == "tr" and self._table is not None and self._table["columns"]:
            self._table["rows"].append([])
        elif tag in ("th", "td") and self._table is not None:
            if "data-key" in known:
                self._table["columns"].append(known["data-key"])
            else:
                self._cell = ""
        elif tag == "small" and self._cell is not None:
            self._table["rows"][-1].append(self._cell)
            self._cell = None

    def handle_endtag(self, tag):
        if tag == "script":
            self._script = None
        elif tag in ("th", "td") and self._cell is not None:
            self._table["rows"][-1].append(self._cell)
            self._cell = None

    def handle_data(self, data):
        if self._script is not None:
            self.scripts[-1][-1] += data
            return
        self.text += data
        if self._cell is not None:
            self._cell += data

    def rows(self, name):
        table = self.tables[name]
        return [dict(zip(table["columns"], row, strict=True)) for row in table["rows"]]

    def packs(self):
        return {
            key.removeprefix("pack-"): json.loads(gzip.decompress(base64.b64decode(text)))
            for kind, key, _, text in self.scripts
            if kind == "text/plain"
        }

    def charts(self):
        return [
            json.loads(text)
            for kind, _, name, text in self.scripts
            if kind == "application/json" and name == "chart-data"
        ]


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return make_store(tmp_path_factory.mktemp("whole") / "runs")


@pytest.fixture(scope="module")
def page(store, tmp_path_factory):
    return Page(build_report(store, tmp_path_factory.mktemp("page") / "report.html"))


@pytest.fixture
def small(tmp_path):
    return make_store(tmp_path / "runs", parts=False)


def build(root, tmp_path):
    return Page(build_report(root, tmp_path / "report.html"))


def test_every_section_with_data_is_on_the_page(page):
    wanted = {"verdict", "depth", "benchmark", "tradeoff", "meta", "rtt", "steering", "provenance"}
    assert wanted <= page.ids


def test_sections_without_data_are_not(small, tmp_path):
    assert not {"meta", "rtt", "steering"} & build(small, tmp_path).ids


def test_the_page_needs_neither_torch_nor_a_plotting_library(store, tmp_path):
    import subprocess

    code = (
        "import sys; from residuum.report.build import build_report; build_report(sys.argv[1], sys.argv[2]); "
        "print([m for m in ('torch', 'transformers', 'matplotlib', 'plotly') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(store), str(tmp_path / "r.html")], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


def test_the_page_names_no_address(page):
    assert not re.search(r"(?:src|href|url)\s*[=(]\s*[\"']?(?:https?:)?//", page.source)


def test_every_link_has_its_target(page):
    assert {link.removeprefix("#") for link in page.links} <= page.ids


def test_every_number_of_the_benchmark_equals_the_store_to_the_digits_shown(page, store):
    rows = {row["model"]: row for row in page.rows("benchmark")}
    seen = 0
    for unit in Store(store).units("evaluation"):
        for metric, record in unit.value["metrics"].items():
            value = record["value"]
            if metric == "uds":  # the run folder has it too, and speaks for itself
                folder = store / f"uds_{unit.value['model']}"
                value = json.loads((folder / "summary.json").read_text())["avg_uds"]
            assert rows[unit.value["model"]][metric] == f"{value:.3f}"
            seen += 1
    assert seen == 50


def test_every_delta_of_the_examples_equals_the_store_to_the_digits_shown(page, store):
    packs = page.packs()
    names = [
        option
        for option in re.findall(r"<option value=\"\d+\">([^<]+)</option>", page.source)
        if option.endswith("ep5")
    ]
    name = names[0]
    blocks = packs["depth-0"]
    shown = next(block for block in blocks if block["block"] == "examples")
    records = [json.loads(line) for line in (store / f"uds_{name}" / "results_detailed.jsonl").read_text().splitlines()]
    assert shown["model"] == name
    for i, record in enumerate(records):
        assert [f"{v:.3f}" for v in shown["second"][i]] == [f"{v:.3f}" for v in record["s2_deltas"]]
        assert [f"{v:.3f}" for v in packs[shown["first"]][i]] == [f"{v:.3f}" for v in record["s1_deltas"]]
        assert (shown["uds"][i] is None) == (record["uds"] is None)
        assert packs[shown["texts"]][i][1] == record["question"]


def test_the_depth_profile_equals_the_store(page, store):
    blocks = page.packs()["depth-0"]
    chart = next(block for block in blocks if block.get("name") == "depth-profile")
    name = next(block for block in blocks if block["block"] == "examples")["model"]
    rows = json.loads((store / f"uds_{name}" / "profile.json").read_text())
    for stage, series in zip(("s1", "s2"), chart["series"], strict=True):
        wanted = [[r["layer"], *(round(r[f"{stage}_{end}"], 3) for end in ("delta", "low", "high"))] for r in rows]
        assert series["points"] == wanted


def test_thresholds_on_the_page_equal_the_tau_command(page, store):
    from residuum.patching.sensitivity import tau_table

    blocks = page.packs()["depth-0"]
    name = next(block for block in blocks if block["block"] == "examples")["model"]
    folder = store / f"uds_{name}"
    lines = (folder / "results_detailed.jsonl").read_text().splitlines()
    (folder / "results.json").write_text(f"[{','.join(lines)}]")
    shown = next(block for block in blocks if block["block"] == "table")["rows"]
    wanted = tau_table(folder, [float(row[0]) for row in shown])
    (folder / "results.json").unlink()
    assert [(row[1], row[2], row[3]) for row in shown] == [
        (f"{w['uds']:.3f}", f"{w['low']:.3f} to {w['high']:.3f}", str(w["n"])) for w in wanted
    ]


def test_table_2_equals_the_meta_evaluation(page, store):
    wanted = {row["metric"]: row for row in json.loads((store / "meta_eval" / "table2.json").read_text())["rows"]}
    for row in page.rows("table2"):
        for number in ("auc", "Q", "R", "HM", "overall"):
            assert row[number] == f"{wanted[row['metric']][number]:.3f}"


def test_rtt_numbers_equal_its_summary_file(page):
    row = page.rows("rtt")[0]
    assert (row["forget_acc_unlearn"], row["forget_acc_unlearn_rtt"], row["gap_closed"]) == ("0.400", "0.650", "0.500")


def test_attacks_and_probes_stand_on_the_card(page):
    assert "relearning" in page.text
    assert "EM 0.500 to 0.900 (retain +0.050)" in page.text
    assert "model_diff: accuracy 0.200 to 0.700" in page.text
    assert "A 0.400 to B 0.650 (0.550 to 0.750)" in page.text


def test_a_model_that_hides_its_knowledge_is_flagged(page):
    assert "hidden, not erased" in page.text
    assert "ROUGE 0.380 against 0.400" in page.text


def test_texts_of_models_and_users_are_shown_as_text(tmp_path):
    root = make_store(tmp_path / "runs", text=HOSTILE)
    name = f"npo {HOSTILE}"
    save_depth(depth_result(name, text=HOSTILE), root / "uds_hostile")
    put_evaluation(Store(root), name, scores(0.5), left_out={"cka": HOSTILE})
    page = build(root, tmp_path)
    executed = [text for kind, _, _, text in page.scripts if kind is None]
    assert len(executed) == 1  # the page's own script is the only one
    assert "alert(1)" not in executed[0]
    assert "alert(1)</script>" not in page.source.replace("&lt;/script&gt;", "")
    assert HOSTILE in page.text
    assert "49" not in re.findall(r"npo [^ ]*", page.text)[0]
    texts = json.dumps(page.packs(), ensure_ascii=False)
    assert json.dumps(HOSTILE)[1:-1] in texts  # inside the examples they are as they were


def test_an_empty_store_is_refused_with_advice(tmp_path):
    (tmp_path / "runs").mkdir()
    with pytest.raises(InputError, match="no finished run") as caught:
        build_report(tmp_path / "runs", tmp_path / "r.html")
    assert "residuum audit" in str(caught.value)
    assert not (tmp_path / "r.html").exists()


def test_a_folder_that_does_not_exist_is_named(tmp_path):
    with pytest.raises(InputError, match="nowhere"):
        build_report(tmp_path / "nowhere", tmp_path / "r.html")


def test_a_broken_unit_is_named_skipped_and_left_where_it_is(small, tmp_path):
    path = sorted((small / "units" / "evaluation").glob("*/*.json"))[0]
    path.write_text(path.read_text()[:200])
    page = build(small, tmp_path)
    problem = page.rows("problems")[0]
    assert problem["kind"] == "skipped"
    assert path.name in problem["where"]
    assert path.exists()
    assert len(page.rows("benchmark")) == 5  # its model still has its UDS run


def test_an_edited_unit_is_noticed(small, tmp_path):
    path = sorted((small / "units" / "evaluation").glob("*/*.json"))[0]
    path.write_text(path.read_text().replace('"value": 0.5', '"value": 0.9', 1))
    assert "does not match its checksum" in build(small, tmp_path).rows("problems")[0]["why"]


def test_a_torn_summary_is_named_and_skipped(small, tmp_path):
    folder = sorted(small.glob("uds_npo*"))[0]
    (folder / "summary.json").write_text("{")
    problems = build(small, tmp_path).rows("problems")
    assert any(folder.name in problem["where"] for problem in problems)


def test_a_run_without_its_summary_is_shown_as_partial(small, tmp_path):
    (small / "1118_101500_tf_npo_layer").mkdir()
    problem = build(small, tmp_path).rows("problems")[0]
    assert problem["kind"] == "partial"
    assert "1118_101500_tf_npo_layer" in problem["where"]


def test_a_run_whose_examples_are_torn_keeps_its_summary(small, tmp_path):
    folder = sorted(small.glob("uds_npo*"))[0]
    (folder / "results_detailed.jsonl").write_text('{"idx": 0, ')
    page = build(small, tmp_path)
    assert any(problem["kind"] == "partial" and folder.name in problem["where"] for problem in page.rows("problems"))
    assert page.rows("benchmark")[1]["uds"] != "–"


def test_a_partial_rtt_sweep_is_shown_as_partial(small, tmp_path):
    from reportable import write_rtt

    write_rtt(small, ["npo_lr1e5_b01_a5_ep5"], status="partial_grid")
    page = build(small, tmp_path)
    assert any("RTT is partial grid" in problem["why"] for problem in page.rows("problems"))


def test_runs_of_different_versions_are_pointed_out(small, tmp_path):
    folder = sorted(small.glob("uds_npo*"))[0]
    summary = json.loads((folder / "summary.json").read_text())
    summary["provenance"]["versions"]["residuum"] = "0.0.9"
    (folder / "summary.json").write_text(json.dumps(summary))
    problems = build(small, tmp_path).rows("problems")
    assert any("different versions" in problem["why"] and "0.0.9" in problem["why"] for problem in problems)


def test_a_store_of_a_newer_version_is_refused(small, tmp_path):
    manifest = json.loads((small / "manifest.json").read_text())
    (small / "manifest.json").write_text(json.dumps({**manifest, "format": 99}))
    with pytest.raises(StoreError, match="newer"):
        build_report(small, tmp_path / "r.html")


def test_without_a_run_of_retain_the_page_says_so(tmp_path):
    put_evaluation(Store(tmp_path / "runs"), "npo_lr1e5_b01_a5_ep5", scores(0.5))
    assert "no run of the retain model" in build(tmp_path / "runs", tmp_path).text.replace(
        "full and no run of the ", ""
    )


def test_a_store_in_a_folder_that_cannot_be_written_is_read(small, tmp_path):
    files = {path: path.stat().st_mtime_ns for path in small.rglob("*")}
    build(small, tmp_path)
    assert {path: path.stat().st_mtime_ns for path in small.rglob("*")} == files


def test_two_stores_make_one_page(small, tmp_path):
    other = tmp_path / "other"
    put_evaluation(Store(other), "undial_lr1e4_b10_a5_ep5", scores(0.3))
    page = Page(build_report([small, other], tmp_path / "r.html"))
    assert len(page.rows("benchmark")) == 6


def test_models_of_one_name_and_different_weights_are_told_apart(small, tmp_path):
    name = "npo_lr1e5_b01_a5_ep5"
    result = depth_result(name, share=0.9)
    result.models["unlearned"].update(weights="f" * 64)
    save_depth(result, small / "uds_again")
    names = [row["model"] for row in build(small, tmp_path).rows("benchmark")]
    assert sum(shown.startswith(f"{name} [") for shown in names) == 2


def test_pool_models_and_attacked_copies_are_no_models_under_test(store):
    root = Store(store)
    put_evaluation(
        root,
        "relearned-copy",
        scores(0.4),
        models={"model": model("relearned-copy", source="runs/relearned/relearned-copy")},
    )
    names = [found.name for found in Findings([store]).models]
    assert "relearned-copy" not in names
    assert not any(name.startswith(("P", "N")) for name in names)
    shutil.rmtree(
        root.path(
            Task(
                "evaluation",
                next(u for u in root.units("evaluation") if u.value["model"] == "relearned-copy").task.spec,
            )
        ).parent
    )


def test_a_metric_asked_later_joins_the_earlier_ones(small, tmp_path):
    name = "npo_lr1e5_b01_a5_ep5"
    put_evaluation(Store(small), name, {"em": 0.123456})
    row = next(row for row in build(small, tmp_path).rows("benchmark") if row["model"] == name)
    assert (row["em"], row["es"]) == ("0.123", "0.250")


def test_a_published_table_stands_beside_own_runs(small, tmp_path):
    table = {"models": [
        {"model": "full", "method": "full", "epoch": "ep10", "alpha": None, "lr": None, "uds": 0.0, "mem": 0.1, "utility_rel": 1.0, "one_minus_es": 0.3},
        {"model": "npo_lr2e5_b01_a1_ep5", "method": "npo", "epoch": "ep5", "alpha": 1, "lr": 2e-5, "uds": 0.5, "mem": 0.4, "utility_rel": 0.9, "s_loss": 0.2},
    ]}  # fmt: skip
    (tmp_path / "t.json").write_text(json.dumps(table))
    page = Page(build_report(small, tmp_path / "r.html", published=tmp_path / "t.json"))
    rows = {row["model"]: row for row in page.rows("benchmark")}
    assert len(rows) == 7
    assert rows["full"]["es"] == "0.700"
    assert (rows["npo_lr2e5_b01_a1_ep5"]["s_mia_loss"], rows["npo_lr2e5_b01_a1_ep5"]["lr"]) == ("0.200", "2e-05")


def test_the_152_published_rows_are_all_on_the_page(shared_data, tmp_path):
    path = shared_data / "published" / "published_method_results.json"
    wanted = json.loads(path.read_text())["models"]
    page = Page(build_report([], tmp_path / "r.html", published=path))
    rows = {row["model"]: row for row in page.rows("benchmark")}
    assert len(rows) == len(wanted) == 152
    assert all(rows[row["model"]]["uds"] == f"{row['uds']:.3f}" for row in wanted)


def test_values_after_an_attack_without_a_run_of_the_model_itself_do_no_harm(tmp_path, small):
    put_attack(Store(small), "unseen", "quantization", {"em": 0.5})
    assert "unseen" not in [row["model"] for row in build(small, tmp_path).rows("benchmark")]


def test_a_run_without_its_profile_and_lines_shows_the_same(small, tmp_path):
    name = "npo_lr1e5_b01_a5_ep5"
    folder = small / f"uds_{name}"
    first = build(small, tmp_path).packs()["depth-1"]
    lines = (folder / "results_detailed.jsonl").read_text().splitlines()
    (folder / "results.json").write_text(f"[{','.join(lines)}]")
    (folder / "results_detailed.jsonl").unlink()
    wanted = json.loads((folder / "profile.json").read_text())
    (folder / "profile.json").unlink()
    run = Findings([small]).find(name=name).depth
    assert run.profile == wanted
    assert build(small, tmp_path).packs()["depth-1"] == first


def test_a_run_of_metric_em_is_shown_without_deltas(tmp_path):
    from dataclasses import replace

    from residuum.patching.audit import UdsConfig
    from residuum.patching.depth import DepthRules, measure_depth

    result = depth_result("npo")
    rules = DepthRules(metric="em")
    examples = [measure_depth(i, [0, 1], 1.0, [1.0, 0.5], [1.0, 0.5 * (i % 2)], rules) for i in range(6)]
    save_depth(replace(result, examples=examples, config=UdsConfig(rules=rules)), tmp_path / "runs" / "uds_npo")
    page = build(tmp_path / "runs", tmp_path)
    shown = next(block for block in page.packs()["depth-0"] if block["block"] == "examples")
    assert (shown["what"], shown["second"][1]) == ("EM", [1.0, 0.5])
    assert "metric em" in page.source


def test_a_store_below_a_folder_called_archive_is_read_whole(tmp_path):
    plain, inside = Findings([make_store(tmp_path / "plain")]), Findings([make_store(tmp_path / "archive" / "runs")])
    assert [len(one.depths) for one in inside.models] == [len(one.depths) for one in plain.models]
    assert any(one.depths for one in inside.models)


def test_values_that_are_equal_up_to_rounding_have_a_histogram():
    from residuum.report.meta import pool_histogram

    pools = {"em": {"P": [0.5, 0.5 + 1e-16], "N": [0.5]}}
    found = {"directions": {"em": "more knowledge"}, "thresholds": {}, "pools": pools, "auc:em": 0.5}
    assert [sum(series["counts"]) for series in pool_histogram(found, "em").spec["series"]] == [1, 2]
