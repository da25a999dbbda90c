"""Files that are whole but not what a reader expects: each is named on the page and skipped, none stops it."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from reportable import (
    depth_result,
    model,
    put_attack,
    put_evaluation,
    put_steering,
    save_depth,
    scores,
    write_meta,
    write_probe,
    write_rtt,
)
from residuum.report.build import make_sections
from residuum.report.findings import Findings
from residuum.report.gates import parse_gates
from residuum.report.shapes import misfit
from residuum.store import Store, Task, write_json

FILES = (
    "uds_b/summary.json", "uds_b/profile.json", "uds_b/results_detailed.jsonl", "uds_c/results.json", "faithfulness/summary.json",
    "faithfulness/results.json", "meta_eval/summary.json", "meta_eval/results.json", "meta_eval/table2.json", "probes/b/model_diff.json",
    "set/generation/a/results.json", "set/generation/a/summary.json",
)  # fmt: skip
KINDS = ("evaluation", "meta_values", "audit", "steer", "steer-probe", "rtt-epoch")
ODD = ('"x"', "3", "null", "[3]", '{"x": 3}')
CELLS = ("ci_low", "best_per_v_b", "curve", "chance", "forget_acc_unlearn", "recovery_rate")


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    """A store that every reader finds something in."""
    root = tmp_path_factory.mktemp("shapes") / "runs"
    store = Store(root)
    for name in "abc":
        save_depth(depth_result(name, examples=2, layers=2), root / f"uds_{name}")
    put_evaluation(store, "a", scores(0.5))
    put_attack(store, "a", "quantization", {"em": 0.5})
    write_meta(root, ["a"])
    write_rtt(root, ["a"])
    put_steering(store)
    write_probe(root, "b")
    lines = (root / "uds_c" / "results_detailed.jsonl").read_text().splitlines()
    (root / "uds_c" / "results.json").write_text(f"[{','.join(lines)}]")
    (root / "uds_c" / "results_detailed.jsonl").unlink()
    write_json(
        root / "set" / "generation" / "a" / "results.json",
        [{"question": "Who?", "generated": "Me.", "split": "forget10", "idx": 0}],
    )
    write_json(root / "set" / "generation" / "a" / "summary.json", {"models": {"model": model("a")}})
    gates = [{"gate": "uds>=0.8", "met": True, "value": 0.9}]
    Store(root).put(
        Task("audit", {"model": {"weights": "w"}}), {"model": "a", "gates": gates, "skipped": {"RTT": "no time"}}
    )
    spec = {"probe": "model_diff", "part": "attack", "role": "unlearned"}
    store.put(Task("steer-probe", spec), {}, provenance={"weights": {"b": model("b")["weights"]}})
    return root  # fmt: skip


@pytest.fixture
def root(whole, tmp_path) -> Path:
    import shutil

    return Path(shutil.copytree(whole, tmp_path / "runs"))


def look(root: Path) -> str:
    """Read everything there is, as a page does; what was noted about it, as text."""
    findings = Findings([root])
    make_sections(findings)
    for found in findings.models:
        for gate in parse_gates("rtt.gap_closed<1,steering.recovery<1,quantization.em<1"):
            gate.check(findings, found)
    return "\n".join(f"{problem.where} {problem.what}" for problem in findings.shelf.problems)


def test_a_whole_store_has_no_problem(root):
    assert look(root) == ""


@pytest.mark.parametrize("name", FILES)
def test_a_file_of_another_shape_is_named_and_skipped(root, name):
    place = name if name.endswith(".json") and not name.startswith("uds_c") else name.rpartition("/")[0]
    for shape in (*ODD, "[]", "{}"):
        (root / name).write_text(shape)
        said = look(root)
        # Nothing of nothing is whole: no rows, no models, no layers.
        assert place in said or (shape == "[]" and "summary" not in name), shape


@pytest.mark.parametrize("kind", ["evaluation", "meta_values", "audit", "steer"])
def test_a_unit_of_another_shape_is_named_and_skipped(root, kind):
    for number, shape in enumerate((*ODD, "[]", "{}")):
        Store(root).put(Task(kind, {"number": number}), json.loads(shape))
    assert look(root).count(f"units/{kind}/") == len(ODD) + 2


@pytest.mark.parametrize("name", FILES)
def test_a_file_without_a_key_is_shown_as_far_as_it_goes_or_named(root, name):
    text = (root / name).read_text()
    lines = name.endswith("jsonl")
    content = [json.loads(line) for line in text.splitlines()] if lines else json.loads(text)
    for poorer in without_a_key(content):
        (root / name).write_text("\n".join(map(json.dumps, poorer)) if lines else json.dumps(poorer))
        look(root)


@pytest.mark.parametrize("kind", KINDS)
def test_a_unit_without_a_key_is_shown_as_far_as_it_goes_or_named(root, kind):
    store = Store(root)
    unit = next(iter(store.units(kind)))
    for number, poorer in enumerate(without_a_key({"spec": dict(unit.task.spec), "value": unit.value}, deep=3)):
        if isinstance(poorer.get("spec"), dict) and "value" in poorer:
            store.put(Task(kind, {**poorer["spec"], "number": number}), poorer["value"])
    look(root)


@pytest.mark.parametrize("cell", CELLS)
def test_a_summary_of_rtt_with_an_odd_cell_is_named(root, cell):
    path = next(root.glob("evals/pipeline/summary/*.csv"))
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    for shape in ("[3]", '{"x": "y"}', "x"):
        rows[0][cell] = shape
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, rows[0])
            writer.writeheader()
            writer.writerows(rows)
        assert path.name in look(root)


def test_a_run_whose_model_has_no_name_is_named(root):
    path = root / "uds_b" / "summary.json"
    summary = json.loads(path.read_text())
    del summary["models"]["unlearned"]["name"]
    path.write_text(json.dumps(summary))
    assert "uds_b/summary.json is not the summary of a UDS run: it.models" in look(root)


def test_a_run_with_a_profile_that_is_none_has_one_from_its_examples(root):
    wanted = json.loads((root / "uds_b" / "profile.json").read_text())
    (root / "uds_b" / "profile.json").write_text("{}")
    findings = Findings([root])
    assert findings.find(name="b").depth.profile == wanted
    assert "profile.json" in findings.shelf.problems[0].where


def test_examples_over_different_layers_are_not_shown(root):
    lines = [json.loads(line) for line in (root / "uds_b" / "results_detailed.jsonl").read_text().splitlines()]
    lines[1]["s2_deltas"] = lines[1]["s2_deltas"][:-1]
    (root / "uds_b" / "results_detailed.jsonl").write_text("\n".join(map(json.dumps, lines)))
    assert "uds_b its examples cannot be read" in look(root)


def test_examples_without_layers_are_not_shown(root):
    lines = [json.loads(line) for line in (root / "uds_b" / "results_detailed.jsonl").read_text().splitlines()]
    poorer = [{key: value for key, value in line.items() if key != "s1_deltas"} for line in lines]
    (root / "uds_b" / "results_detailed.jsonl").write_text("\n".join(map(json.dumps, poorer)))
    (root / "uds_b" / "profile.json").unlink()
    assert "uds_b its examples cannot be read: examples[0] has no s1_deltas" in look(root)


@pytest.mark.parametrize(
    ("value", "shape", "said"),
    [
        ({"a": 1}, {"a": int}, None),
        ({}, {"a": int}, "it has no a"),
        ({"a": None}, {"a?": int}, None),
        ({"a": "x"}, {"a?": int}, "it.a is a str"),
        ([1, "x"], [int], "it[1] is a str"),
        ([1], [int, int], "it has 1 parts, not 2"),
        ({"k": [None, 1.5]}, {str: [float | None]}, "it.k[1] is a float" if isinstance(1.5, int) else None),
        (None, (type(None), [int]), None),
        (3, {"a": int}, "it is a int, not an object"),
    ],
)
def test_a_misfit_says_where(value, shape, said):
    assert misfit(value, shape) == said


def without_a_key(content, deep=2):
    """The content without one of its keys, or with null there, one after another, so many objects deep; of lists the first."""
    if isinstance(content, list) and content:
        yield from ([poorer, *content[1:]] for poorer in without_a_key(content[0], deep))
    if isinstance(content, dict) and deep:
        for key, value in content.items():
            yield {other: found for other, found in content.items() if other != key}
            yield {**content, key: None}
            if key not in ("settings", "provenance", "layer_records", "s1_details", "s2_details"):
                yield from ({**content, key: poorer} for poorer in without_a_key(value, deep - 1))
