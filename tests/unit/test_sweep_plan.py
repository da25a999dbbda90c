"""What a sweep will do, known before anything is loaded."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from commanding import call
from residuum.errors import InputError, UnknownName, UsageError
from residuum.models.names import all_models
from residuum.sweep.driver import Shard
from residuum.sweep.plan import Plan, make_plan
from residuum.sweep.request import EngineConfig, parse_size, read_plan_file, read_request, with_engine
from residuum.sweep.sources import data_identity, expand, look_up
from residuum.sweep.tasks import SweepTask, file_name

CPU = {"gpus": []}
STEER = {"experiment": "e", "vector_from_trait": "e/a/b"}


def plan(**given) -> Plan:
    return make_plan(read_request({"engine": CPU, "full_model": "a/full", "retain_model": "a/retain", **given}))


def test_every_model_gets_every_kind_of_task_after_one_reference_run():
    tasks = plan(models=["a/x", "a/y"], do=["uds", "evaluate"], data_dir="tofu").by_name
    assert list(tasks) == [
        "evaluate/a/retain", "uds/a/retain", "uds/a/x", "evaluate/a/x", "uds/a/y", "evaluate/a/y",
    ]  # fmt: skip
    assert tasks["uds/a/x"].needs == ("uds/a/retain",)
    assert tasks["evaluate/a/y"].needs == ("evaluate/a/retain",)
    assert tasks["uds/a/retain"].needs == ()


def test_a_retain_model_in_the_list_is_not_asked_twice():
    assert [task.name for task in plan(models=["a/retain", "retain"], do="uds").tasks] == ["uds/a/retain"]


def test_equal_requests_have_equal_keys_and_other_options_have_others():
    keys = [
        [task.key for task in plan(models=["a/x"], do="uds", uds=options).tasks]
        for options in ({}, {}, {"mode": "mlp"}, {"delta_threshold": 0.1})
    ]
    assert keys[0] == keys[1]
    assert len({tuple(k) for k in keys}) == 3


def test_a_gpu_plan_is_not_taken_for_a_cpu_plan():
    on_gpu = make_plan(read_request({"models": ["a/x"], "do": "uds", "engine": {"gpus": [0]}, "full_model": "a/full", "retain_model": "a/retain"}))  # fmt: skip
    assert on_gpu.by_name["uds/a/x"].key != plan(models=["a/x"], do="uds").by_name["uds/a/x"].key


def test_a_task_survives_json():
    for task in plan(models=["a/x"], do="uds", uds={"layers": [0, 1]}).tasks:
        assert SweepTask.read(json.loads(json.dumps(task.record()))) == task


def test_a_request_survives_json():
    request = read_request(
        {"models": ["a/x"], "do": ["uds"], "uds": {"mode": "mlp"}, "engine": {"name": "serial", "gpus": [1]}}
    )
    assert read_request(json.loads(json.dumps(request.record()))) == request


@pytest.fixture
def grid(tmp_path: Path):
    for name in ("forget10", "retain90"):
        (tmp_path / f"{name}.jsonl").write_text('{"question": "q", "answer": "a"}\n')
    return {"data_dir": str(tmp_path), "do": "uds"}


def test_a_grid_of_unlearnings_is_made_before_it_is_audited(grid):
    made = plan(unlearn=[{"method": ["npo", "graddiff"], "lr": [1e-5, 2e-5], "epochs": 1, "out": "m"}], **grid)
    names = [name for name in made.by_name if name.startswith("unlearn/")]
    assert names == [
        "unlearn/npo_lr1e5_b01_a1_ep1", "unlearn/npo_lr2e5_b01_a1_ep1", "unlearn/graddiff_lr1e5_a1_ep1", "unlearn/graddiff_lr2e5_a1_ep1",
    ]  # fmt: skip
    audit = made.by_name["uds/npo_lr1e5_b01_a1_ep1"]
    assert audit.needs == ("unlearn/npo_lr1e5_b01_a1_ep1", "uds/a/retain")
    assert audit.work.model == str(Path("m/npo_lr1e5_b01_a1_ep1").absolute())
    assert audit.spec["model"] == {"made": made.by_name["unlearn/npo_lr1e5_b01_a1_ep1"].key}


def test_where_a_model_is_put_is_no_part_of_its_identity(grid):
    keys = {plan(unlearn=[{"method": "npo", "out": out}], **grid).tasks[1].key for out in ("here", "there")}
    assert len(keys) == 1


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"modles": ["a/x"]}, "no key modles. Did you mean models?"),
        ({"engine": {"worker": 2}}, "no key worker. Did you mean workers?"),
        ({"engine": {"name": "procces"}}, "Did you mean process?"),
        ({"engine": {"workers": 0}}, "workers must be at least 1"),
        ({"engine": {"workers": "two"}}, "engine.workers is a number"),
        ({"engine": {"gpus": ["a"]}}, "numbers of GPUs"),
        ({"engine": {"evict": True}}, "Give --max-disk too"),
        ({"engine": {"evict": "no"}}, "engine.evict is true or false"),
        ({"engine": {"name": 3}}, "engine.name is a text"),
        ({"engine": {"gpus": True}}, "numbers of GPUs"),
        ({"engine": {"max_disk": "-5GB"}}, "max_disk must be at least 0"),
        ({"engine": {"gpus_per_task": 1.5}}, "a share of one GPU or a whole number"),
        ({"engine": {"gpus_per_task": float("nan")}}, "gpus_per_task must be at least 0"),
        ({"models": ["a/x"], "do": "uds", "uds": {"mode": "nope"}}, "mode is one of"),
        ({"models": ["a/x"], "do": "uds", "uds": {"delta_threshold": "abc"}}, "uds.delta_threshold is of type float"),
        ({"models": ["a/x"], "do": "uds", "data": "nowhere.json"}, "data is not there: nowhere.json"),
        ({"models": ["a/x"], "do": "evaluate", "data_dir": "nowhere"}, "data_dir is not there: nowhere"),
        ({"models": ["a/x"], "do": "evaluate"}, "evaluate has no data.\n  Give --data-dir"),
        ({"models": ["a/x"], "do": "evaluate", "evaluate": {"members": 3, "nonmembers": 3}}, "evaluate.members is no file: 3"),
        ({"models": ["a/x"], "do": "rtt", "rtt": {"naive_model": 3}}, "rtt.naive_model is a name or a path"),
        ({"models": ["a/x"], "do": "meta", "meta": {"relearning": 3}}, "meta.relearning is a table"),
        ({"task": [{"name": "x", "do": "uds", "model": "a/x", "options": 3}]}, "options of task x is a table"),
        ({"task": [{"name": "x", "do": "uds", "model": "a/x", "needs": [3]}]}, "needs of task x is a list of task names"),
        ({"models": ["a/x"], "do": "udz"}, 'unknown kind of task "udz"'),
        ({"models": ["a/x"], "do": "unlearn"}, "made by [[unlearn]] tables"),
        ({"models": ["a/x"], "do": "uds", "uds": {"mod": "mlp"}}, "uds has no option mod in a sweep. Did you mean mode?"),
        ({"models": ["a/x"], "do": "uds", "uds": {"unlearned": "a/y"}}, "uds has no option unlearned"),
        ({"models": ["a/x"], "do": "evaluate", "evaluate": {"metric": "em"}}, "Did you mean metrics?"),
        ({"models": ["a/x"], "do": "evaluate", "evaluate": {"metrics": ["emm"]}}, 'unknown metric "emm"'),
        ({"models": ["a/x"], "do": "evaluate", "evaluate": {"metrics": 3}}, "evaluate.metrics is of type"),
        ({"models": ["a/x"], "do": "evaluate", "evaluate": {"batch_tokens": "many"}}, "evaluate.batch_tokens is of type int"),
        ({"models": ["a/x"], "do": "evaluate", "evaluate": {"mask_mode": "word"}}, "mask_mode is one of"),
        ({"models": ["a/x"], "do": "evaluate", "evaluate": {"dtype": "float99"}}, "evaluate.dtype is one of"),
        ({"models": ["a/x"], "do": "evaluate", "evaluate": {"members": "m.jsonl"}}, "evaluate.nonmembers go together"),
        ({"models": ["a/x"], "do": "steer", "steer": STEER | {"subset": "x"}}, "steer.subset is of type int"),
        ({"models": ["a/x"], "do": "steer", "steer": STEER | {"holdout": 2}}, "holdout is a share"),
        ({"models": ["a/x"], "do": "steer", "steer": STEER | {"coefficients": ["a"]}}, "steer.coefficients is of type"),
        ({"models": ["a/x"], "do": "steer", "steer": STEER | {"judge": "nobody"}}, "steer.judge is one of"),
        ({"models": ["a/x"], "do": "steer", "steer": STEER | {"generation": {"rollouts": 0}}}, "rollouts is at least 1"),
        ({"models": ["a/x"], "do": "steer", "steer": STEER | {"search": 3}}, "steer.search is a table"),
        ({"models": ["a/x"], "do": "meta", "meta": {"relearning": {"lr": "x"}}}, "meta.relearning.lr is of type float"),
        ({"unlearn": [{"method": "npo", "lr": [1e-5, "x"]}]}, "[[unlearn]] npo.lr is of type float"),
        ({"unlearn": [{"method": "npo", "lr": -1}]}, "learning rate must be a positive number"),
        ({"unlearn": [{"method": "npo", "epochs": 0}]}, "at least one epoch"),
        ({"unlearn": [{"method": "npo", "accumulation": 0}]}, "accumulation must be at least 1"),
        ({"unlearn": [{"method": "npo", "optimizer": "sdg"}]}, 'unknown optimizer "sdg"'),
        ({"unlearn": [{"method": "npo", "device": "cpu"}]}, "[[unlearn]].device is given by the plan"),
        ({"unlearn": [{"method": "npo", "format": ["chat", 3]}]}, "[[unlearn]] npo.format is of type str, not 3"),
        ({"models": ["a/x"], "do": "meta", "meta": {"relearning": {"lr": -1}}}, "learning rate must be a positive number"),
        ({"models": ["a/x"], "do": "meta", "meta": {"relearning": {"epochs": 0}}}, "at least one epoch"),
        ({"models": ["a/x"], "do": "meta", "meta": {"relearning": {"batch_size": 0}}}, "batch_size must be at least 1"),
        ({"models": ["a/x"], "do": "steer", "steer": STEER | {"judge_options": {"log": 3}}}, "steer.judge_options.log is of type"),
        ({"unlearn": [{"method": "npo", "out": 3}]}, "[[unlearn]] out is a name or a path"),
        ({"models": ["a" * 5000], "do": "uds"}, "a model of 5000 characters is no name"),
        ({"models": [f"a/{'a' * 300}"], "do": "uds"}, "a model of 302 characters is no name"),
        ({"models": ["a/x"], "do": "rtt", "rtt": {"results_dir": "x"}}, "rtt.results_dir is given by the plan"),
        ({"models": ["a/x"], "do": "rtt", "rtt": {"datset": "x"}}, "Did you mean dataset?"),
        ({"models": ["a/x"], "do": "steer"}, "a steer task says its experiment"),
        ({"models": ["a/x"], "do": "steer", "steer": {"layer": "1"}}, "Did you mean layers?"),
        ({"models": ["a/x"], "do": "meta", "meta": {"attacks": ["flood"]}}, "attack is one of"),
        ({"models": "a/x", "uds": 3}, "[uds] is a table"),
        ({"task": {"name": "x"}}, "write [[task]] with two brackets"),
        ({"task": [{"name": "x"}]}, "a [[task]] has a name and says what to do"),
        ({"task": [{"name": "x", "do": "uds"}]}, "task x says nothing about its model"),
        ({"task": [{"name": "x", "do": "uds", "modle": "a/x"}]}, "a key of [[task]]"),
        ({"unlearn": [{"lr": 1e-5}]}, "names its method"),
        ({"unlearn": [{"method": "npo"}]}, "needs the file of forget rows"),
        ({"set": "../up"}, "set is the name of a folder"),
        ({"name": "a/b"}, "name is the name of a folder"),
        ({}, "there is nothing to do"),
        ({"models": ["a/x"]}, "there is nothing to do"),
    ],
)  # fmt: skip
def test_a_mistake_in_a_plan_is_a_sentence(given, message):
    with pytest.raises(InputError) as error:
        plan(**given)
    assert message in str(error.value)


def test_two_models_of_one_name_are_refused(tmp_path):
    with pytest.raises(UsageError, match="two models are called x"):
        plan(models=[str(tmp_path / "one/x"), str(tmp_path / "two/x")] if _folders(tmp_path) else [], do="uds")


def _folders(root: Path) -> bool:
    for name in ("one", "two"):
        (root / name / "x").mkdir(parents=True)
    return True


def test_two_tasks_of_one_name_are_refused():
    rows = [{"name": "again", "do": "uds", "model": model} for model in ("a/x", "a/y")]
    with pytest.raises(UsageError, match="two tasks are called again"):
        plan(task=rows)


def test_names_that_would_share_a_log_are_refused():
    rows = [{"name": name, "do": "uds", "model": "a/x"} for name in ("my task", "my/task")]
    with pytest.raises(UsageError, match="two tasks are called"):
        plan(task=rows)


def test_two_members_of_a_grid_with_one_name_are_refused(grid):
    with pytest.raises(UsageError, match="are called npo_lr1e5_b01_a1_ep10"):
        plan(unlearn=[{"method": "npo", "seed": [0, 1]}], **grid)
    with pytest.raises(UsageError, match="are called npo_lr1e5_b01_a1_ep10"):
        plan(unlearn=[{"method": "npo", "seed": 0}, {"method": "npo", "seed": 1}], **grid)


def test_a_circle_is_named():
    rows = [
        {"name": "first", "do": "uds", "model": "a/x", "needs": ["second"]},
        {"name": "second", "do": "uds", "model": "a/y", "needs": ["first"]},
    ]
    with pytest.raises(UsageError, match=r"tasks wait for each other: (first needs second|second needs first)"):
        plan(task=rows)


def test_a_need_that_is_no_task_is_named():
    with pytest.raises(UnknownName, match='unknown task "uds/a/zz"'):
        plan(task=[{"name": "x", "do": "uds", "model": "a/x", "needs": ["uds/a/zz"]}])


def test_patterns_mean_registry_names_or_checkpoint_folders(tmp_path, monkeypatch):
    found = expand(["simnpo_*_ep5"])
    assert found == [name for name in all_models() if name.startswith("simnpo_") and name.endswith("_ep5")]
    assert len(found) == 12 * 2
    for name in ("one", "two", "empty"):
        (tmp_path / name).mkdir()
    for name in ("one", "two"):
        (tmp_path / name / "config.json").write_text("{}")
    assert expand([f"{tmp_path}/*"]) == [str(tmp_path / "one"), str(tmp_path / "two")]
    monkeypatch.chdir(tmp_path)
    assert expand(["*", "two", "npo"]) != []
    assert expand(["t*"]) == ["two"]


def test_a_pattern_without_a_match_is_an_error():
    with pytest.raises(UnknownName, match="simnpp"):
        expand(["simnpp_*"])


def test_a_model_that_is_not_there_has_an_identity_all_the_same(tmp_path):
    broken = tmp_path / "broken"
    broken.mkdir()
    sources = look_up(["nonsense", str(broken), "open-unlearning/some"])
    assert [next(iter(source.identity)) for source in sources] == ["missing", "missing", "hub"]


def test_data_are_known_by_content(tmp_path):
    file = tmp_path / "a.jsonl"
    file.write_text("1")
    before, folder_before = data_identity(file), data_identity(tmp_path)
    file.write_text("2")
    assert data_identity(file) != before
    assert data_identity(tmp_path) != folder_before
    assert data_identity("tofu") == "tofu"


def test_shards_divide_the_models_and_share_the_references():
    tasks = plan(models=[f"a/m{i}" for i in range(7)], do=["uds", "evaluate"], data_dir="tofu").tasks
    parts = [{task.name for task in tasks if Shard(i, 3).has(task)} for i in (1, 2, 3)]
    references = {"uds/a/retain", "evaluate/a/retain"}
    assert set.union(*parts) == {task.name for task in tasks}
    assert parts[0] & parts[1] == parts[1] & parts[2] == references
    assert {"uds/a/m0", "evaluate/a/m0"} <= parts[0]


def test_a_task_that_waits_for_models_of_several_shards_belongs_to_all_of_them():
    rows = [
        {"name": "compare", "do": "rtt", "model": "a/x", "needs": ["rtt/a/y"]},
        {"name": "after", "do": "rtt", "model": "a/y", "needs": ["compare"], "options": {"seed": 1}},
    ]
    tasks = plan(models=["a/x", "a/y"], do="rtt", task=rows).by_name
    assert {name: task.group for name, task in tasks.items()} == {
        "rtt/a/x": 0, "rtt/a/y": 1, "compare": None, "after": None,
    }  # fmt: skip


def test_a_model_that_is_made_and_also_given_stays_in_the_shard_of_its_making(grid, tmp_path):
    table = {"method": "npo", "lr": [1e-5, 2e-5], "epochs": 1, "out": str(tmp_path / "m")}
    first = tmp_path / "m/npo_lr1e5_b01_a1_ep1"
    first.mkdir(parents=True)
    (first / "config.json").write_text("{}")
    tasks = plan(unlearn=[table], models=[str(tmp_path / "m/*")], **grid).by_name
    for name in ("npo_lr1e5_b01_a1_ep1", "npo_lr2e5_b01_a1_ep1"):
        assert tasks[f"uds/{name}"].group == tasks[f"unlearn/{name}"].group is not None


def test_models_of_the_registry_are_asked_about_the_data_they_were_made_from():
    request = {"models": ["simnpo_*_ep5"], "do": "uds,evaluate", "set": "ep5", "engine": CPU}
    assert {task.work.data_dir for task in make_plan(read_request(request)).tasks if task.kind == "evaluate"} == {
        "tofu"
    }


def test_another_engine_forgets_what_only_the_one_before_could_use():
    ray = read_request({"engine": {"name": "ray", "address": "a:1", "storage": "driver", "gpus_per_task": 0.5, "workers": 2}})  # fmt: skip
    assert with_engine(ray, {"name": "serial"}).engine == EngineConfig("serial", workers=2)
    assert with_engine(ray, {"threads": 2}).engine.address == "a:1"
    process = read_request({"engine": {"gpus": [0, 1]}})
    assert with_engine(process, {"name": "ray", "address": "a:1"}).engine == EngineConfig("ray", address="a:1")
    assert with_engine(process, {"name": "serial"}).engine.gpus == (0, 1)


def test_a_plan_file_that_is_none_is_refused(tmp_path):
    with pytest.raises(InputError, match="there is no such plan"):
        read_plan_file(tmp_path / "PLAN.toml")
    (tmp_path / "PLAN.toml").write_text("do = [")
    with pytest.raises(InputError, match="is not TOML"):
        read_plan_file(tmp_path / "PLAN.toml")


def test_what_only_shows_in_the_whole_plan_names_the_file_too(tmp_path, capsys):
    file = tmp_path / "PLAN.toml"
    row = '[[task]]\nname = "again"\ndo = "uds"\nmodel = "a/x"\n'
    file.write_text('full_model = "a/full"\nretain_model = "a/retain"\n' + row + row)
    assert call("sweep", "run", file, "--gpus", "none", "--dry-run", "--runs", tmp_path) == 2
    assert f"{file}: two tasks are called again" in capsys.readouterr().err


def test_sizes_have_units():
    assert parse_size("1.5GB") == 1_500_000_000
    with pytest.raises(UsageError, match="500MB"):
        parse_size("12 parsecs")


def test_long_names_are_cut_and_told_apart():
    one, other = (file_name(f"uds/{'a' * 250}{end}") for end in "xy")
    assert len(one) == len(other) < 220
    assert one != other


def test_file_names_lead_nowhere():
    assert file_name("../../x") == "x"
    assert file_name("uds/a/b") == "uds__a__b"


def test_one_folder_given_in_two_ways_is_one_model(tmp_path, monkeypatch):
    (tmp_path / "x").mkdir()
    monkeypatch.chdir(tmp_path)
    assert [task.name for task in plan(models=["x", "./x", str(tmp_path / "x")], do="rtt").tasks] == ["rtt/x"]


def test_a_single_task_has_result_folders_of_its_own():
    rows = [{"name": "closer look", "do": "uds", "model": "a/x", "options": {"mode": "mlp"}}]
    tasks = plan(task=rows, models=["a/x"], do="uds", set="ep5").by_name
    assert tasks["uds/a/x"].output == "ep5/uds/a__x/summary.json"
    assert tasks["closer look"].output == "ep5-closer__look/uds/a__x/summary.json"
