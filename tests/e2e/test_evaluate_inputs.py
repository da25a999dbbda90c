"""What `residuum evaluate` says about data, models and words it cannot use."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import residuum
from commanding import call
from evidential import NO_CLASSIFIER
from residuum.errors import DataError, InputError, ModelError, UnknownName, UsageError
from residuum.metrics.evaluate import EvaluationWarning
from residuum.models.loading import LM, load


@pytest.fixture
def data(tiny_world, tmp_path) -> Path:
    return Path(shutil.copytree(tiny_world.data, tmp_path / "data"))


def edit(path: Path, change) -> None:
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    change(rows)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_a_missing_split_names_the_metrics_that_need_it_and_those_that_can_run(evaluate, data):
    (data / "holdout10.jsonl").unlink()
    with pytest.raises(
        DataError, match=r"holdout10\.jsonl.*\n.*\n  Needed by: mia_loss.*\n.*--metrics em,es"
    ) as caught:
        evaluate("base", data=data, metrics="em,es,mia_loss,privleak")
    assert "privleak" in str(caught.value)
    assert evaluate("base", data=data, metrics="em,es")["em"].n > 0


def test_several_missing_splits_are_named_at_once_and_the_rest_can_really_run(evaluate, data):
    for split in ("holdout10", "retain_perturbed"):
        (data / f"{split}.jsonl").unlink()
    edit(data / "forget10_perturbed.jsonl", lambda rows: rows[0].pop("paraphrased_answer"))
    with pytest.raises(DataError) as caught:
        evaluate("base", data=data, metrics="em,mia_loss,retain_q_prob,paraprob,rouge")
    text = str(caught.value)
    for file, metric in (("holdout10", "mia_loss"), ("retain_perturbed", "retain_q_prob"), ("forget10", "paraprob")):
        assert file in text
        assert f"Needed by: {metric}." in text
    assert text.endswith("The rest can run: --metrics em,rouge")


def test_no_rows_at_all_are_refused(evaluate):
    with pytest.raises(DataError, match="forget10_perturbed holds no rows"):
        evaluate("base", data={"forget10_perturbed": []}, metrics="em")


def test_a_missing_annotated_set_names_what_needs_it(evaluate, data):
    (data / "forget10_annotated.json").unlink()
    with pytest.raises(DataError, match=r"forget10_annotated(.|\n)*Needed by: uds, cka"):
        evaluate("base", data=data, metrics="em,uds,cka")


def test_a_row_without_paraphrase_stops_only_the_metrics_that_need_it(evaluate, data):
    edit(data / "forget10_perturbed.jsonl", lambda rows: rows[2].pop("paraphrased_answer"))
    with pytest.raises(DataError, match=r"forget10_perturbed\.jsonl:3, field 'paraphrased_answer'.*(.|\n)*paraprob"):
        evaluate("base", data=data)
    assert evaluate("base", data=data, metrics="em,mia_loss,rouge")["em"].n > 0


def test_rows_longer_than_the_context_are_counted_and_said(evaluate, data, tiny_world, runs):
    edit(data / "forget10_perturbed.jsonl", lambda rows: rows[1].update(answer="Ada Brook wrote a book. " * 60))
    with pytest.warns(EvaluationWarning, match="1 of 10 rows of forget10_perturbed are longer than the context of 256"):
        found = residuum.evaluate(tiny_world.model("base"), data=data, metrics="em,mia_loss,rouge", runs=runs)
    assert (found["em"].n, found["em"].n_undefined, found["em"].values[1]) == (9, 1, None)
    assert found["mia_loss"].n_undefined == 1


def test_a_tokenizer_without_a_chat_template_is_offered_the_raw_format(evaluate, tiny_world):
    lm = load(tiny_world.model("base"), device="cpu")
    lm.tokenizer.chat_template = None
    bare = LM.from_model(lm.model, lm.tokenizer, name="bare")
    with pytest.raises(InputError, match="--format raw"):
        evaluate(model=bare, metrics="em", retain=None, full=None)
    assert (
        evaluate(model=bare, metrics="em", retain=None, full=None, format="raw").record["settings"]["format"] == "raw"
    )


def test_a_reference_with_another_vocabulary_is_refused(evaluate, tiny_world):
    lm = load(tiny_world.model("base"), device="cpu")
    lm.tokenizer.add_tokens(["<new>"])
    other = LM.from_model(lm.model, lm.tokenizer, name="other")
    with pytest.raises(ModelError, match=r"vocabularies of base .* and of its reference other"):
        evaluate("base", retain=other, metrics="s_mia_loss")


def test_a_needed_reference_that_is_not_given_is_an_error_with_the_rest(evaluate):
    with pytest.raises(UsageError, match=r"needed by: s_mia_loss, uds.*\n.*--retain-model(.|\n)*--metrics em$"):
        evaluate("base", metrics="em,s_mia_loss,uds", retain=None, full=None)


def test_all_metrics_without_references_leaves_out_and_names_what_needs_them(tiny_world, runs):
    with pytest.warns(EvaluationWarning, match=r"no retain and no full model is given, but needed by: .*uds"):
        found = residuum.evaluate(
            tiny_world.model("base"), data=tiny_world.data, runs=runs, device="cpu", fluency_model=NO_CLASSIFIER
        )
    assert "em" in found
    assert found.record["left_out"]["uds"] == "needs the retain and the full model"


def test_metrics_may_come_from_a_generator_but_not_be_none_at_all(evaluate):
    assert set(evaluate("base", metrics=(name for name in ("em", "es")))) == {"em", "es"}
    with pytest.raises(UsageError, match="no metric is named"):
        evaluate("base", metrics=[])


def test_a_score_without_a_value_says_why(evaluate, tiny_world):
    # Full and retain are one model, so retain lacks nothing anywhere.
    found = evaluate("base", metrics="uds,privacy", full=tiny_world.model("retain90"))
    assert found["uds"].value is None
    assert "none of the" in found["uds"].notes[0]
    assert "without uds" in found["privacy"].notes[-1]


def test_an_unknown_metric_has_a_nearest_name(evaluate):
    with pytest.raises(UnknownName, match="rouge"):
        evaluate("base", metrics="rogue")


def test_bad_words_on_the_command_line_end_with_2_and_no_traceback(tiny_world, runs, capsys):
    words = ["evaluate", "--model", tiny_world.model("base"), "--runs", runs]
    given = ["--data-dir", tiny_world.data]
    bad = (
        ["--data-dir", "nowhere"],
        [],
        [*given, "--metrics", "uds"],
        [*given, "--mask-mode", "eos"],
        [*given, "--set", "../x"],
        [*given, "--metrics", "em", "--seed", "-5"],
        [*given, "--metrics", "em", "--batch-tokens", "0"],
        [*given, "--metrics", ","],
        [*given, "--metrics", "em", "--model", "no-such-model"],
    )
    for more in bad:
        assert call(*words, *more) == 2
        error = capsys.readouterr().err
        assert error.startswith("residuum: ")
        assert "Traceback" not in error
