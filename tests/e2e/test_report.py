"""From the command line to the page: audits of the tiny world, gates, and what users get wrong."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import pytest

from reportable import make_store
from residuum.cli.app import run
from residuum.cli.audit_steps import BUDGETS, Audit
from residuum.report.findings import Findings
from residuum.store import Store


def call(capsys, *words) -> tuple[int, str, str]:
    """Exit code, output and errors of a command."""
    capsys.readouterr()
    try:
        run([str(word) for word in words])
        code = 0
    except SystemExit as stop:
        code = int(stop.code or 0)
    out, err = capsys.readouterr()
    return code, out, err


@pytest.fixture(scope="module")
def trio(tiny_world):
    return ["--full", tiny_world.model("full"), "--retain", tiny_world.model("retain90"), "--unlearned", tiny_world.model("base")]  # fmt: skip


@pytest.fixture(scope="module")
def audited(tiny_world, trio, tmp_path_factory):
    """The store of a quick audit of base, which knows nothing."""
    runs = tmp_path_factory.mktemp("audited") / "runs"
    words = ["audit", *trio, "--data", tiny_world.data, "--budget", "quick", "--runs", runs, "--relearn-lr", "1e-3"]
    with contextlib.suppress(SystemExit):
        run([str(word) for word in words])
    return runs


def test_an_audit_leaves_a_report_with_every_attack(audited):
    text = (audited / "report.html").read_text(encoding="utf-8")
    for word in (
        "Verdict",
        "Depth",
        "Benchmark table",
        "Steering",
        "Provenance",
        "quantization",
        "relearning",
        "model_diff",
    ):
        assert word in text


def test_the_report_of_an_audit_shows_the_numbers_of_its_units(audited):
    text = (audited / "report.html").read_text(encoding="utf-8")
    checked = 0
    for unit in Store(audited).units("evaluation"):
        if unit.value["models"]["model"]["quantize"] or "relearned" in unit.value["models"]["model"]["source"]:
            continue
        for key in ("mem", "utility_rel"):
            value = unit.value["metrics"].get(key, {}).get("value")
            if value is not None:
                assert f">{value:.3f}<" in text
                checked += 1
    assert checked >= 4


def test_the_copies_that_attacks_evaluate_are_no_models_of_the_report(audited):
    units = Store(audited).units("evaluation")
    assert {"base", "full", "retain90"} < {unit.value["model"] for unit in units}
    assert [model.name for model in Findings([audited]).models] == ["full", "retain90", "base"]


def test_drawn_answers_wait_for_the_thorough_budget(tmp_path):
    options = {
        "full": "f",
        "retain": "r",
        "unlearned": "u",
        "data": tmp_path,
        "runs": tmp_path,
        "options": {},
        "seed": 0,
    }
    probes = {
        budget: Audit(**options, budget=budget, forget_split="forget10", relearn_lr=None, rtt_lrs=None).probes
        for budget in BUDGETS
    }
    assert probes["quick"] == ("model_diff",)
    assert set(probes["thorough"]) - set(probes["standard"]) == {"anon"}
    assert len(probes["thorough"]) == 6


def test_a_second_audit_reads_the_store_and_checks_its_gates(capsys, audited, tiny_world, trio):
    words = ["audit", *trio, "--data", tiny_world.data, "--budget", "quick", "--runs", audited, "--relearn-lr", "1e-3"]
    code, out, err = call(capsys, *words, "--gate", "uds<=1.5,utility_rel>=0", "--json")
    found = json.loads(out[out.index("{") :])
    assert code == 0, err
    assert all(gate["met"] for gate in found["gates"])
    code, out, err = call(capsys, *words, "--gate", "uds>=2,mem>=0")
    assert code == 4
    assert "1 of 2 gates are not met: uds>=2" in err
    assert "not met" in (audited / "report.html").read_text(encoding="utf-8")


def test_a_gate_is_read_before_anything_is_loaded(capsys, tmp_path):
    words = ["audit", "--full", "nowhere/f", "--retain", "nowhere/r", "--unlearned", "nowhere/u", "--data", tmp_path]
    assert call(capsys, *words, "--gate", "uds=>1")[0] == 2
    code, _, err = call(capsys, *words, "--gate", "udz>=1")
    assert (code, "uds" in err) == (2, True)
    assert call(capsys, *words, "--budget", "fast")[0] == 2


def test_an_audit_of_nothing_is_refused(capsys, tmp_path, trio):
    code, _, err = call(capsys, "audit", *trio, "--data", tmp_path / "none.json", "--runs", tmp_path / "runs")
    assert (code, "none.json" in err) == (2, True)


def test_an_annotated_file_alone_gives_the_depth(capsys, tiny_world, trio, tmp_path):
    code, out, err = call(
        capsys,
        "audit",
        *trio,
        "--data",
        tiny_world.annotated,
        "--runs",
        tmp_path / "runs",
        "--out",
        tmp_path / "r.html",
    )
    assert code == 0, err
    assert "UDS" in out
    assert "Depth" in (tmp_path / "r.html").read_text(encoding="utf-8")


def test_build_prints_the_path_of_the_page(capsys, tmp_path):
    root = make_store(tmp_path / "runs", parts=False)
    code, out, _ = call(capsys, "report", "build", root, "--out", tmp_path / "page.html")
    assert (code, out.strip()) == (0, f"report: {tmp_path / 'page.html'}")
    assert Path(tmp_path / "page.html").is_file()


def test_the_python_name_is_there(tmp_path):
    import residuum

    root = make_store(tmp_path / "runs", parts=False)
    assert residuum.build_report([root], out=tmp_path / "page.html") == tmp_path / "page.html"


def test_an_empty_store_and_a_missing_folder_exit_with_2(capsys, tmp_path):
    (tmp_path / "runs").mkdir()
    for folder in ("runs", "nowhere"):
        code, _, err = call(capsys, "report", "build", tmp_path / folder, "--out", tmp_path / "page.html")
        assert (code, err.startswith("residuum: ")) == (2, True)


def test_compare_and_plot_and_published_answer_on_the_command_line(capsys, tmp_path):
    root = make_store(tmp_path / "runs", parts=False)
    code, out, _ = call(capsys, "report", "compare", root, root, "--json", "--out", tmp_path / "c.html")
    changes = json.loads(out)["changes"]
    assert (code, len(changes), {change["difference"] for change in changes}) == (0, 50, {0.0})
    assert (tmp_path / "c.html").is_file()
    code, _, err = call(capsys, "plot", "tradeof", root, "--out", tmp_path / "f.pdf")
    assert (code, "trade-off" in err) == (2, True)
    assert call(capsys, "plot", "trade-off", root, "--out", tmp_path / "f.pdf")[0] == 0
    (tmp_path / "t.json").write_text('{"models": [{"model": "a", "uds": 0.5, "utility_rel": 0.9}]}')
    assert call(capsys, "report", "published", tmp_path / "t.json", root, "--out", tmp_path / "p.html")[0] == 0
