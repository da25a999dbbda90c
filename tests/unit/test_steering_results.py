"""Run identity, the view of results, and what comes back from older files."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from residuum.errors import DataError, ResiduumError, UsageError
from residuum.steering.experiments import Experiment
from residuum.steering.rebuild import rebuild
from residuum.steering.report import write_report
from residuum.steering.results import Results
from residuum.steering.settings import Generation, Setting, context_id, make_context, run_task, significant
from residuum.steering.summary import summarize
from residuum.steering.traits import PromptSet, Question, SteeringWarning, load_prompts
from residuum.steering.vectors import Vector
from residuum.store import Store, Task

# Identity: everything that decides a run is part of its name


class Handle:
    """A model that is only known by name; nothing here looks at weights."""

    name = "m"

    def __init__(self, template="{{ x }}", **identity):
        self.identity = {"weights": "w", "dtype": "float32", "quantize": None, **identity}
        self.chat_template = template

    def tokenizer(self):
        return self


PROMPTS = PromptSet(Path("p.json"), (Question("a", "A?"), Question("b", "B?")), "{question} {answer}")
DRAWN = Generation(temperature=0.7)
JUDGE = {"provider": "openai", "model": "gpt", "base_url": None, "scoring": "single"}


def context(handle=None, prompts=PROMPTS, questions=None, generation=DRAWN, judge=JUDGE, coherence="C"):
    return context_id(
        make_context(handle or Handle(), prompts, questions or prompts.questions, generation, judge, coherence)
    )


@pytest.mark.parametrize(
    "change",
    [
        {"handle": Handle(weights="other")},
        {"handle": Handle(dtype="bfloat16")},
        {"handle": Handle(quantize="int8")},
        {"handle": Handle(template="{{ y }}")},
        {"prompts": replace(PROMPTS, eval_prompt="{question}: {answer}")},
        {"prompts": replace(PROMPTS, questions=(Question("a", "A?"), Question("c", "C?")))},
        {"questions": PROMPTS.questions[:1]},
        {"questions": PROMPTS.questions[::-1]},
        {"generation": replace(DRAWN, max_new_tokens=64)},
        {"generation": replace(DRAWN, temperature=0.8)},
        {"generation": replace(DRAWN, rollouts=2)},
        {"generation": replace(DRAWN, seed=1)},
        {"generation": replace(DRAWN, system_prompt="Be brief.")},
        {"generation": replace(DRAWN, chat=False)},
        {"generation": replace(DRAWN, thinking="judge-answer")},
        {"judge": {**JUDGE, "provider": "gemini"}},
        {"judge": {**JUDGE, "model": "gpt-2"}},
        {"judge": {**JUDGE, "scoring": "letters"}},
        {"coherence": "D"},
    ],
    ids=lambda change: "-".join(change),
)
def test_everything_that_decides_an_answer_or_its_rating_makes_another_context(change):
    assert context(**change) != context()


def test_what_decides_nothing_makes_no_other_context():
    greedy = Generation()
    assert context(generation=replace(greedy, seed=7, rollouts=4)) == context(generation=greedy)
    assert context(prompts=replace(PROMPTS, path=Path("elsewhere.json"))) == context()


def vector(layer=1, *, seed=0, method="probe", component="residual"):
    values = torch.randn(8, generator=torch.Generator().manual_seed(seed))
    return Vector(layer, method, component, values, float(values.norm()))


SETTING = Setting((vector(),), (2.0,))


def key(setting, trait="a/b", experiment="e", root=".."):
    return run_task({"root": root, "experiment": experiment, "trait": trait}, {"x": 1}, setting).key


@pytest.mark.parametrize(
    "setting",
    [
        replace(SETTING, vectors=(vector(2),)),
        replace(SETTING, vectors=(vector(seed=1),)),
        replace(SETTING, vectors=(vector(method="lda"),)),
        replace(SETTING, vectors=(vector(component="mlp_out"),)),
        replace(SETTING, vectors=(vector(), vector(2)), coefficients=(2.0, 2.0)),
        replace(SETTING, coefficients=(2.5,)),
        replace(SETTING, coefficients=(-2.0,)),
        replace(SETTING, operator="ablate"),
        replace(SETTING, mode="response"),
        replace(SETTING, incremental=True),
        None,
    ],
)
def test_everything_that_is_steered_makes_another_run(setting):
    assert key(setting) != key(SETTING)


def test_the_same_setting_is_the_same_run_and_belongs_to_its_trait():
    assert key(Setting((vector(),), (2.0,))) == key(SETTING)
    assert key(SETTING) not in (key(SETTING, trait="a/c"), key(SETTING, experiment="f"), key(SETTING, root="../b"))


def test_coefficients_are_rounded_so_that_a_tiny_change_is_no_other_run():
    assert significant(123.4567891) == significant(123.4568012) == 123.457
    assert str(significant(-0.0)) == "0.0"


def test_two_roots_that_share_a_store_do_not_see_each_others_runs(tmp_path):
    store = Store(tmp_path / "runs")
    one, other = (Results(Experiment(tmp_path / root, "e"), "a/b", store) for root in ("one", "other"))
    unit_of(one, 1.0)
    assert (len(one.units()), len(other.units())) == (1, 0)
    assert other.archive() is None
    assert len(one.units()) == 1


def test_a_project_that_is_moved_with_its_runs_keeps_them(tmp_path):
    before, after = tmp_path / "before", tmp_path / "after"
    unit_of(Results(Experiment(before, "e"), "a/b", Store(before / "runs")), 1.0)
    before.rename(after)
    assert len(Results(Experiment(after, "e"), "a/b", Store(after / "runs")).units()) == 1


# What older tools left behind


SEED = {
    "trait": "mental_state/optimism",
    "prompts_file": "analysis/steering/prompts/optimism.json",
    "baseline": {"trait_mean": 50.0, "coherence_mean": 92.0, "n": 15},
    "runs": [
        {
            "config": {"layers": [16], "methods": ["probe"], "coefficients": [2.0], "component": "residual"},
            "result": {"trait_mean": 72.5, "trait_std": 12.3, "coherence_mean": 88.0, "n": 15},
            "timestamp": "2025-12-03T04:49:16",
        }
    ],
}


@pytest.fixture
def results(tmp_path):
    return Results(Experiment(tmp_path, "e"), "mental_state/optimism", Store(tmp_path / "runs"))


def unit_of(results, coefficient, trait=60.0, timestamp="2026-01-01T00:00:00"):
    setting = replace(SETTING, coefficients=(coefficient,))
    context_ = {"model": {"name": "m"}, "judge": JUDGE, "prompts": "h"}
    value = {
        "result": summarize(answers(trait)), "status": "ok", "items": answers(trait), "relative_coefficients": [1.0],
        "timestamp": timestamp, "created": timestamp, "search": None,
    }  # fmt: skip
    return results.store.put(run_task(results.place, context_, setting), value, provenance={})


def answers(trait, question="Q?", response="Fine."):
    return [{"question_id": "q", "question": question, "rollout": 0, "response": response, "trait": {"score": trait}, "coherence": {"score": 90.0}}]  # fmt: skip


def write(results, view):
    results.path.parent.mkdir(parents=True, exist_ok=True)
    results.path.write_text(json.dumps(view))


def test_a_file_of_the_seed_is_read_and_added_to_without_losing_anything(results):
    write(results, SEED)
    results.add(unit_of(results, 3.0))
    view = json.loads(results.path.read_text())
    assert view["runs"][0] == SEED["runs"][0]
    assert [run["config"]["coefficients"] for run in view["runs"]] == [[2.0], [3.0]]
    assert {key: view[key] for key in ("trait", "prompts_file", "baseline")} == {key: SEED[key] for key in ("trait", "prompts_file", "baseline")}  # fmt: skip


def test_the_same_run_again_keeps_its_place_in_the_list(results):
    for number, coefficient in enumerate((1.0, 2.0, 3.0)):
        results.add(unit_of(results, coefficient, timestamp=f"2026-01-0{number + 1}T00:00:00"))
    value = {**results.store.get(unit_of(results, 1.0).task).value, "timestamp": "2026-02-01T00:00:00", "result": summarize(answers(99.0))}  # fmt: skip
    results.add(results.store.put(unit_of(results, 1.0).task, value, provenance={}))
    runs = json.loads(results.path.read_text())["runs"]
    assert [run["config"]["coefficients"][0] for run in runs] == [1.0, 2.0, 3.0]
    assert runs[0]["result"]["trait_mean"] == 99.0


OLD_NAMES = {
    "L16_probe_c50p0_2025-12-04_05-55-16.467598.json": ([16], ["probe"], [50.0], False),
    "L16_mean_diff_c50p0_2025-12-04_05-55-17.467598.json": ([16], ["mean_diff"], [50.0], False),
    "L7_random_baseline_c-1p5_2025-12-04_05-55-18.json": ([7], ["random_baseline"], [-1.5], False),
    "L12_14_mean_diff_mean_diff_c1p0_2p0_2025-12-04_05-55-19.000001.json": ([12, 14], ["mean_diff"] * 2, [1.0, 2.0], False),
    "L12_14_probe_mean_diff_c-1p0_2e+01_inc_2025-12-04_05-55-20.json": ([12, 14], ["probe", "mean_diff"], [-1.0, 20.0], True),
    "L3_gradient_c1e-05_2025-12-04_05-55-21.json": ([3], ["gradient"], [1e-5], False),
    "L3_ica_c2_2025-12-04_05-55-22.json": ([3], ["ica"], [2.0], False),
}  # fmt: skip


def old_file(results, name, scores=(60.0, 80.0)):
    path = results.path.parent / "responses" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = [{"question": f"Q{i}?", "response": "x", "rollout": 0, "trait_score": score, "coherence_score": 90.0} for i, score in enumerate(scores)]  # fmt: skip
    path.write_text(json.dumps(rows))
    return path


@pytest.mark.filterwarnings("ignore::residuum.steering.traits.SteeringWarning")
@pytest.mark.parametrize("name", OLD_NAMES)
def test_a_response_file_of_the_older_tool_comes_back_as_it_was(results, name):
    old_file(results, name)
    made = rebuild(results)
    layers, methods, coefficients, incremental = OLD_NAMES[name]
    assert made.skipped == []
    config = made.view["runs"][0]["config"]
    assert config == {"layers": layers, "methods": methods, "coefficients": coefficients, "component": "residual", "incremental": incremental}  # fmt: skip
    assert made.view["runs"][0]["result"]["trait_mean"] == 70.0
    assert made.view["runs"][0]["result"]["trait_std"] == 10.0


@pytest.mark.filterwarnings("ignore::residuum.steering.traits.SteeringWarning")
def test_component_and_method_may_be_folders_and_the_question_a_prompt(results):
    path = old_file(results, "attn_out/probe/L16_c50.0_2025-12-04_05-55-16.json")
    rows = [{"prompt": row.pop("question"), **row} for row in json.loads(path.read_text())]
    path.write_text(json.dumps(rows))
    assert rebuild(results).view["runs"][0]["config"]["component"] == "attn_out"


def test_the_component_comes_from_the_run_of_the_same_time(results):
    old_file(results, "L16_probe_c2p0_2025-12-03_04-49-16.json")
    seed = json.loads(json.dumps(SEED))
    seed["runs"][0]["config"]["component"] = "mlp_out"
    write(results, seed)
    made = rebuild(results)
    assert made.view["runs"][0]["config"]["component"] == "mlp_out"
    assert made.view["baseline"] == SEED["baseline"]
    assert made.recovered == made.lost == []


def test_a_missing_baseline_and_a_guessed_component_are_warned_about(results):
    old_file(results, next(iter(OLD_NAMES)))
    with pytest.warns(SteeringWarning) as caught:
        rebuild(results)
    said = " ".join(str(warning.message) for warning in caught)
    assert "residual is assumed" in said
    assert "no baseline" in said


@pytest.mark.filterwarnings("ignore::residuum.steering.traits.SteeringWarning")
def test_of_two_files_of_one_configuration_the_later_wins(results):
    old_file(results, "L16_probe_c50p0_2025-12-04_05-55-16.json", scores=(10.0,))
    old_file(results, "L16_probe_c50p0_2025-12-05_05-55-16.json", scores=(90.0,))
    made = rebuild(results)
    assert [run["result"]["trait_mean"] for run in made.view["runs"]] == [90.0]
    assert made.superseded == ["L16_probe_c50p0_2025-12-04_05-55-16.json"]


@pytest.mark.filterwarnings("ignore::residuum.steering.traits.SteeringWarning")
def test_files_that_cannot_be_used_are_listed_with_a_reason(results):
    old_file(results, next(iter(OLD_NAMES)))
    for name, text in (("L1_magic_c1_2025-12-04_05-55-16.json", "[]"), ("L1_probe_c1_2025-12-04_05-55-17.json", "{"), ("L1_2_probe_c1_2025-12-04_05-55-18.json", "[]")):  # fmt: skip
        (results.path.parent / "responses" / name).write_text(text)
    reasons = dict(rebuild(results).skipped)
    assert len(reasons) == 3
    assert "not JSON" in reasons["L1_probe_c1_2025-12-04_05-55-17.json"]
    assert "do not match" in reasons["L1_2_probe_c1_2025-12-04_05-55-18.json"]


def test_only_unusable_files_are_a_failure_and_no_folder_is_a_mistake(results):
    with pytest.raises(DataError):
        rebuild(results)
    (results.path.parent / "responses").mkdir(parents=True)
    (results.path.parent / "responses" / "L1_probe_c1_2025-12-04_05-55-17.json").write_text("{")
    with pytest.raises(ResiduumError, match="none of the 1 files") as caught:
        rebuild(results)
    assert caught.value.exit_code == 1


def test_a_damaged_unit_is_left_out_and_named(results):
    results.add(unit_of(results, 1.0))
    path = results.store.path(unit_of(results, 2.0).task)
    path.write_text(path.read_text()[:100])
    made = rebuild(results)
    assert len(made.view["runs"]) == 1
    assert made.skipped


def test_an_apply_writes_beside_and_an_overwrite_keeps_a_copy(results):
    results.add(unit_of(results, 1.0))
    unit_of(results, 2.0)
    before = results.path.read_text()
    made = rebuild(results, apply=True)
    assert len(made.recovered) == 1
    assert made.written.name == "results_rebuilt.json"
    assert results.path.read_text() == before
    rebuild(results, apply=True, overwrite=True)
    assert len(json.loads(results.path.read_text())["runs"]) == 2
    assert results.path.with_name("results.json.bak").read_text() == before


def test_one_run_lost_and_another_found_is_still_a_loss(results):
    write(results, SEED)
    unit_of(results, 1.0)
    with pytest.raises(UsageError, match="--allow-loss"):
        rebuild(results, apply=True, overwrite=True)
    rebuild(results, apply=True, overwrite=True, allow_loss=True)
    assert [run["config"]["coefficients"] for run in json.loads(results.path.read_text())["runs"]] == [[1.0]]


def test_an_overwrite_of_an_unknown_trait_leaves_nothing_behind(results):
    with pytest.raises(DataError):
        rebuild(results, apply=True, overwrite=True)
    assert not results.path.parent.exists()


@pytest.mark.parametrize("view", ["{", "[]", {"runs": ["x"]}, {"runs": [{}]}, {"runs": [], "baselines": []}])
def test_a_damaged_view_is_back_even_if_nothing_is_run_after_it(results, view):
    results.add(unit_of(results, 1.0))
    results.path.write_text(view if isinstance(view, str) else json.dumps(view))
    with pytest.warns(SteeringWarning, match="damaged"):
        results.read()
    assert len(json.loads(results.path.read_text())["runs"]) == 1
    assert len(list(results.path.parent.glob("results.json.corrupt-*"))) == 1


def test_results_of_the_older_tool_belong_to_the_file_they_name(results, tmp_path):
    write(results, SEED)
    prompts = {"questions": ["Why?"], "eval_prompt": "{question} {answer}"}
    named, copy, other = (tmp_path / name for name in (SEED["prompts_file"], "copy.json", "other.json"))
    for path, content in ((named, prompts), (copy, prompts), (other, {**prompts, "questions": ["How?"]})):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(content))
    results.check_prompts(load_prompts(named))
    results.check_prompts(load_prompts(copy))
    with pytest.raises(UsageError, match="other prompts"):
        results.check_prompts(load_prompts(other))
    named.unlink()
    with pytest.raises(UsageError, match="other prompts"):
        results.check_prompts(load_prompts(copy))


# The page


def baseline_of(results, response):
    task = Task("steer", {**results.place, "context": {"model": {"name": "m"}, "judge": JUDGE, "prompts": "h"}, "run": None})  # fmt: skip
    value = {"result": summarize(answers(50.0)), "status": "ok", "items": answers(50.0, response=response), "relative_coefficients": None, "timestamp": "2026-01-01T00:00:00", "created": "2026-01-01T00:00:00"}  # fmt: skip
    return results.store.put(task, value, provenance={})


def test_a_page_stands_alone_and_escapes_what_models_say(results):
    attack = "<script>alert(1)</script> & </td>"
    results.add(baseline_of(results, attack))
    results.add(unit_of(results, 2.0))
    results.add(unit_of(results, 3.0, trait=85.0))
    page = write_report(results).read_text()
    assert attack not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt; &amp;" in page
    assert "<script" not in page
    assert "http" not in page
    assert page.count("<rect") == 2 * 2 + 1
    assert "Trait against coherence" in page
    assert "layers 1, coefficients 3.0: trait 85.0" in page


def test_a_page_of_results_of_the_older_tool_is_made_without_texts(results, tmp_path):
    write(results, SEED)
    page = write_report(results, tmp_path / "page.html").read_text()
    assert "layers 16, coefficients 2.0: trait 72.5" in page
    assert "Baseline: trait 50.0" in page
    assert "before and after" not in page
