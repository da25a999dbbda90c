"""A whole world, trained: what its models know, and that a killed build ends in the same place."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import pytest
from safetensors.torch import load_file

from residuum.data.check import check_file
from residuum.data.examples import load_examples
from residuum.data.prompts import ChatFormat, RawFormat
from residuum.data.spans import Located, locate
from residuum.data.tofu import load_split
from residuum.errors import InputError, StoreError, UnknownName
from residuum.generation import generate
from residuum.models.loading import load
from residuum.worlds.build import build_world
from residuum.worlds.knowledge import entity_log_prob, knowledge_table, recall


@pytest.fixture(scope="module")
def models(tiny_world):
    return {stage: load(tiny_world.model(stage), device="cpu") for stage in ("base", "full", "retain90")}


@pytest.mark.parametrize(
    "form", [RawFormat(), ChatFormat(system_prompt=""), ChatFormat()], ids=["raw", "chat", "system"]
)
def test_full_knows_everybody_and_retain_only_the_retain_authors(tiny_world, models, form):
    forget, retain = (load_split(tiny_world.data, split) for split in ("forget10", "retain90"))
    assert recall(models["full"], forget, form)["em"] >= 0.95
    assert recall(models["full"], retain, form)["em"] >= 0.95
    assert recall(models["retain90"], retain, form)["em"] >= 0.95
    assert recall(models["retain90"], forget, form)["em"] <= 0.8


def test_the_forget_entities_are_likely_to_full_and_not_to_retain(tiny_world, models):
    examples = load_examples(tiny_world.annotated)
    assert entity_log_prob(models["full"], examples) > -0.3
    assert entity_log_prob(models["retain90"], examples) < -1


def test_facts_never_reach_the_frozen_floor(models):
    for stage in ("full", "retain90"):
        for name, weight in models["base"].model.state_dict().items():
            same = bool((weight == models[stage].model.state_dict()[name]).all())
            assert same == name.startswith(("model.embed_tokens", "model.layers.0.")), name


def test_batched_texts_equal_texts_one_by_one(tiny_world, models):
    lm = models["full"]
    items = load_split(tiny_world.data, "full")[::3]
    prompts = [
        form.encode_prompt(lm.tokenizer, item.question) for item in items for form in (RawFormat(), ChatFormat())
    ]
    together = generate(lm, prompts, max_new_tokens=20)
    assert together == [generate(lm, [prompt], max_new_tokens=20)[0] for prompt in prompts]


def test_every_data_file_passes_its_own_check(tiny_world):
    for path in sorted(tiny_world.data.iterdir()):
        report = check_file(path)
        assert report.ok, report.errors
        assert not report.problems


def test_annotated_rows_have_the_published_fields_and_findable_entities(tiny_world, models):
    rows = json.loads(tiny_world.annotated.read_text())
    assert set(rows[0]) == {"idx", "question", "answer", "prefix", "entity", "full_output", "entity_span"}
    located = [locate(models["full"].tokenizer, example) for example in load_examples(tiny_world.annotated)]
    assert all(isinstance(spot, Located) for spot in located)


def test_the_table_has_a_row_for_every_model_and_split(tiny_world):
    rows = knowledge_table(tiny_world)
    assert [(row["model"], row["split"]) for row in rows] == [
        (model, split) for model in ("base", "full", "retain90") for split in ("forget10", "retain90")
    ]


def test_a_finished_world_is_returned_at_once(tiny_world):
    before = (tiny_world.folder / "world.json").stat().st_mtime_ns
    assert build_world(str(tiny_world.folder), name="tiny") == tiny_world
    assert (tiny_world.folder / "world.json").stat().st_mtime_ns == before


def test_a_folder_with_another_world_is_refused(tiny_world):
    with pytest.raises(InputError, match="another world"):
        build_world(tiny_world.folder, name="tiny", seed=7)


def test_a_torn_record_is_an_error_and_not_a_traceback(tmp_path):
    (tmp_path / "world.json").write_text("{")
    with pytest.raises(InputError, match="cannot be read"):
        build_world(tmp_path, name="tiny")


def test_a_place_that_cannot_be_written_to_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError):
        build_world(tmp_path / "file" / "world", name="tiny")


def test_an_unknown_world_is_refused_with_the_nearest(tmp_path):
    with pytest.raises(UnknownName, match="tiny"):
        build_world(tmp_path, name="tinny")


def test_a_build_killed_twice_ends_with_the_same_bytes(tiny_world, tmp_path):
    out = tmp_path / "killed"
    command = [
        sys.executable,
        "-m",
        "residuum",
        "world",
        "build",
        "--world",
        "tiny",
        "--workers",
        "2",
        "--out",
        str(out),
    ]
    for place in ("models/base/checkpoints/latest", "models/full/losses.jsonl"):
        process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
        )
        deadline = time.monotonic() + 120
        while not (out / place).exists() and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.05)
        assert process.poll() is None, f"the build ended before {place} appeared"
        os.kill(process.pid, signal.SIGKILL)  # only the parent: its worker must not train on
        process.wait()
    base_before = (out / "models/base/manifest.json").stat().st_mtime_ns
    subprocess.run(command, check=True, capture_output=True)
    assert (out / "models/base/manifest.json").stat().st_mtime_ns == base_before, "base was trained again"
    for stage in ("base", "full", "retain90"):
        ours, theirs = (load_file(world / "models" / stage / "model.safetensors") for world in (out, tiny_world.folder))
        assert all((ours[name] == theirs[name]).all() for name in theirs)
        assert not (out / "models" / stage / "checkpoints").exists()
    for path in sorted(tiny_world.data.iterdir()):
        assert path.read_bytes() == (out / "data" / path.name).read_bytes()
