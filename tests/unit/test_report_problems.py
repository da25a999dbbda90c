"""What is not whole, or not as expected, is named and skipped; the rest is shown."""

from __future__ import annotations

import json

import pytest

from pages import built
from reportable import make_store, put_evaluation, scores, write_rtt
from residuum.errors import InputError, StoreError
from residuum.report.build import build_report
from residuum.store import Store


@pytest.fixture
def small(tmp_path):
    return make_store(tmp_path / "runs", parts=False)


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
    page = built(small, tmp_path)
    problem = page.rows("problems")[0]
    assert problem["kind"] == "skipped"
    assert path.name in problem["where"]
    assert path.exists()
    assert len(page.rows("benchmark")) == 5  # its model still has its UDS run


def test_an_edited_unit_is_noticed(small, tmp_path):
    path = sorted((small / "units" / "evaluation").glob("*/*.json"))[0]
    path.write_text(path.read_text().replace('"value": 0.5', '"value": 0.9', 1))
    assert "does not match its checksum" in built(small, tmp_path).rows("problems")[0]["why"]


def test_a_torn_summary_is_named_and_skipped(small, tmp_path):
    folder = sorted(small.glob("uds_npo*"))[0]
    (folder / "summary.json").write_text("{")
    problems = built(small, tmp_path).rows("problems")
    assert any(folder.name in problem["where"] for problem in problems)


def test_a_run_without_its_summary_is_shown_as_partial(small, tmp_path):
    (small / "1118_101500_tf_npo_layer").mkdir()
    problem = built(small, tmp_path).rows("problems")[0]
    assert problem["kind"] == "partial"
    assert "1118_101500_tf_npo_layer" in problem["where"]


def test_a_run_whose_examples_are_torn_keeps_its_summary(small, tmp_path):
    folder = sorted(small.glob("uds_npo*"))[0]
    (folder / "results_detailed.jsonl").write_text('{"idx": 0, ')
    page = built(small, tmp_path)
    assert any(problem["kind"] == "partial" and folder.name in problem["where"] for problem in page.rows("problems"))
    assert page.rows("benchmark")[1]["uds"] != "–"


def test_a_partial_rtt_sweep_is_shown_as_partial(small, tmp_path):
    write_rtt(small, ["npo_lr1e5_b01_a5_ep5"], status="partial_grid")
    page = built(small, tmp_path)
    assert any("RTT is partial grid" in problem["why"] for problem in page.rows("problems"))


def test_a_torn_summary_of_rtt_is_named_and_the_others_are_shown(small, tmp_path):
    write_rtt(small, ["npo_lr1e5_b01_a5_ep5"])
    (small / "evals" / "pipeline" / "summary" / "2026-01-01-00-00-00.csv").write_text('model_path,rtt_signature\n"m')
    page = built(small, tmp_path)
    assert [row["model"] for row in page.rows("rtt")] == ["npo_lr1e5_b01_a5_ep5"]
    problem = next(row for row in page.rows("problems") if "2026-01-01" in row["where"])
    assert (problem["kind"], str(small) in problem["why"]) == ("skipped", False)


def test_runs_of_different_versions_are_pointed_out(small, tmp_path):
    folder = sorted(small.glob("uds_npo*"))[0]
    summary = json.loads((folder / "summary.json").read_text())
    summary["provenance"]["versions"]["residuum"] = "0.0.9"
    (folder / "summary.json").write_text(json.dumps(summary))
    problems = built(small, tmp_path).rows("problems")
    assert any("different versions" in problem["why"] and "0.0.9" in problem["why"] for problem in problems)


def test_a_store_of_a_newer_version_is_refused(small, tmp_path):
    manifest = json.loads((small / "manifest.json").read_text())
    (small / "manifest.json").write_text(json.dumps({**manifest, "format": 99}))
    with pytest.raises(StoreError, match="newer"):
        build_report(small, tmp_path / "r.html")


def test_without_a_run_of_retain_the_page_says_so(tmp_path):
    put_evaluation(Store(tmp_path / "runs"), "npo_lr1e5_b01_a5_ep5", scores(0.5))
    assert "no run of the retain model" in built(tmp_path / "runs", tmp_path).text.replace(
        "full and no run of the ", ""
    )


def test_a_store_in_a_folder_that_cannot_be_written_is_read(small, tmp_path):
    files = {path: path.stat().st_mtime_ns for path in small.rglob("*")}
    built(small, tmp_path)
    assert {path: path.stat().st_mtime_ns for path in small.rglob("*")} == files
