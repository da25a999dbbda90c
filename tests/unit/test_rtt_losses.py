"""Which tokens carry loss, how losses are reduced, which token a letter is, and what the methods teach."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from miniatures import miniature
from residuum.batching import Encoded
from residuum.data.mcq import MCQ, mcq_prompt
from residuum.errors import DataError, ModelError, UsageError
from residuum.models.loading import LM
from residuum.rtt.accuracy import Scores, letter_ids, score_letters
from residuum.rtt.config import UnlearnConfig
from residuum.rtt.facts import McqFacts, load_mcq_facts
from residuum.rtt.freezing import trained_parts, unfrozen
from residuum.rtt.losses import Retraining, encode_question, encode_text, reduce_nll, reduction_of
from residuum.rtt.methods import ForgetDraw, constant_config, method_of, unlearn_job
from residuum.training.loop import freeze_all_but
from residuum.worlds.birthdays import draw_birthdays, word_tokenizer, write_birthdays
from vocabularies import fast_tokenizer

ITEM = MCQ("When was Alba Brandt born?", ("1950", "1960", "1970", "1980"), 2)


@pytest.fixture(scope="module")
def words():
    return word_tokenizer()


@pytest.fixture(scope="module")
def lm(words) -> LM:
    return LM.from_model(miniature("llama", vocab=len(words)), words, name="random")


@pytest.fixture(scope="module")
def facts(tmp_path_factory) -> McqFacts:
    folder = tmp_path_factory.mktemp("birthdays")
    write_birthdays(folder, draw_birthdays(0, splits=3, items=4), forget=["split_0", "split_1"], seed=0)
    return load_mcq_facts(folder)


def labelled(tokenizer, row: Encoded) -> list[str]:
    return tokenizer.convert_ids_to_tokens(list(row.labels))


@pytest.mark.parametrize(
    ("loss_type", "expected"),
    [
        ("LETTER", ["C"]),
        ("LETTER_ANSWER", ["C", "1970"]),
        ("QUESTION_ANSWER", "<begin> When was Alba Brandt born? 1970".split()),
        (
            "QUESTION_LETTER_ANSWER",
            "<begin> When was Alba Brandt born? A 1950 B 1960 C 1970 D 1980 Answer: C 1970".split(),
        ),
    ],
)
def test_a_loss_type_labels_what_it_says(words, loss_type, expected):
    assert labelled(words, encode_question(words, ITEM, loss_type)) == expected


def test_sentences_are_labelled_whole_or_only_their_last_number(words):
    text = "In 1950 Alba Brandt was born in 1970."
    assert len(encode_text(words, text, "CORPUS").labels) == 9
    assert labelled(words, encode_text(words, text, "NUMBER")) == ["1970"]


def test_a_number_of_several_tokens_is_labelled_whole():
    tokenizer = fast_tokenizer()
    row = encode_text(tokenizer, "She was born in 1987, she said.", "NUMBER")
    assert tokenizer.decode(list(row.labels)).strip() == "1987"


def test_a_sentence_without_a_number_is_refused(words):
    with pytest.raises(DataError, match="NUMBER"):
        encode_text(words, "Alba Brandt was born.", "NUMBER")


def test_a_long_question_is_cut_on_the_left(words):
    row = encode_question(words, ITEM, "LETTER_ANSWER", max_length=5)
    assert words.convert_ids_to_tokens(list(row.ids)) == ["D", "1980", "Answer:", "C", "1970"]
    assert labelled(words, row) == ["C", "1970"]


def test_published_retraining_drops_the_last_character():
    tokenizer = fast_tokenizer()
    whole, cut = (encode_text(tokenizer, "born in 1987", "CORPUS", compat=c) for c in (None, "published"))
    assert tokenizer.decode(list(cut.ids)) == tokenizer.decode(list(whole.ids))[:-1]


def test_reductions_follow_their_formulas():
    logits, labels = torch.randn(2, 5, 7), torch.full((2, 5), -100)
    labels[0, 3:], labels[1, 4:] = 2, 3
    scores = F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), reduction="none").view(2, 4)
    first, second = scores[0, 2:], scores[1, 3:]
    assert reduce_nll(logits, labels, "tokens") == pytest.approx(torch.cat([first, second]).mean().item())
    assert reduce_nll(logits, labels, "row_sums") == pytest.approx(((first.sum() + second.sum()) / 2).item())
    assert reduce_nll(logits, labels, "row_means") == pytest.approx(((first.mean() + second.mean()) / 2).item())


def test_letter_answer_sums_when_retraining_and_averages_when_unlearning():
    assert reduction_of("LETTER_ANSWER") == "row_sums"
    assert reduction_of("LETTER_ANSWER", unlearning=True) == "tokens"


def objective(rows, *, compat=None, loss_type="QUESTION_LETTER_ANSWER", **more) -> Retraining:
    return Retraining(rows, loss_type=loss_type, batch_size=2, seed=0, pad_id=0, compat=compat, **more)


def test_padding_counts_only_in_the_published_loss(lm):
    rows = [Encoded((1, 9, 10, 11), 0), Encoded((1, 12), 0)]
    ours, padded = (objective(rows, compat=c).losses(lm.model, rows)["total"].item() for c in (None, "published"))
    apart = [objective([row]).losses(lm.model, [row])["total"].item() for row in rows]
    assert ours == pytest.approx((3 * apart[0] + apart[1]) / 4, abs=1e-5)
    assert padded != pytest.approx(ours, abs=1e-3)


def test_rows_of_one_length_have_no_padding_to_count(lm):
    rows = [Encoded((1, 9, 10), 0), Encoded((1, 12, 13), 0)]
    ours, padded = (objective(rows, compat=c).losses(lm.model, rows)["total"].item() for c in (None, "published"))
    assert padded == pytest.approx(ours, abs=1e-5)


def test_the_order_of_t_depends_on_seed_and_epoch_alone():
    rows = [Encoded((i, i), 1) for i in range(9)]
    assert objective(rows).batches(1) == objective(rows).batches(1)
    assert objective(rows).batches(1) != objective(rows).batches(2)
    assert sorted(row.ids for batch in objective(rows).batches(3) for row in batch) == [row.ids for row in rows]


def test_letters_that_share_a_token_are_refused():
    # This tokenizer has no token for a blank and a letter: all four begin with the blank.
    with pytest.raises(ModelError, match="one token"):
        letter_ids(fast_tokenizer(), mcq_prompt(ITEM))
    assert len(letter_ids(fast_tokenizer(), mcq_prompt(ITEM), "nospace")) == 4


def test_scores_are_the_logits_at_the_end_of_each_prompt(lm, words):
    longer = replace(ITEM, question="When was Alba Brandt Brandt Brandt born?")
    found = score_letters(lm, [ITEM, longer])
    for row, item in zip(found.scores, [ITEM, longer], strict=True):
        ids = torch.tensor([words(mcq_prompt(item))["input_ids"]])
        logits = lm.model(ids).logits[0, -1, [i for [i] in letter_ids(words, mcq_prompt(item))]]
        np.testing.assert_allclose(row, logits.detach().numpy(), atol=1e-5)


def test_shots_come_first_and_are_solved():
    prompt = mcq_prompt(ITEM, [replace(ITEM, question="Who?")])
    assert prompt.startswith("Who?\nA. 1950")
    assert "Answer: C.\n\nWhen was" in prompt


def test_a_model_that_computes_no_numbers_has_no_accuracy():
    scores = Scores(np.array([[1.0, np.nan, 0, 0]], dtype=np.float32), np.array([0]))
    assert scores.accuracy is None
    assert scores.plain()["correct"] is None


def draw(facts, words, **settings) -> ForgetDraw:
    return ForgetDraw(UnlearnConfig(**settings), facts, None, words, 0)


def taught(words, draw: ForgetDraw, epoch: int) -> list[str]:
    return sorted(" ".join(words.convert_ids_to_tokens(list(r.ids))) for pair in draw.epoch(epoch) for r in pair.answer)


@pytest.mark.parametrize("loss_types", [("CORPUS",), ("LETTER_ANSWER",), ("NUMBER", "LETTER_ANSWER")])
def test_gd_reads_the_truth_and_ria_and_fwf_never_do(facts, words, loss_types):
    truth = set(taught(words, draw(facts, words, type="GD", loss_types=loss_types), 0))
    for kind in ("RIA", "FWF"):
        assert truth.isdisjoint(taught(words, draw(facts, words, type=kind, loss_types=loss_types), 0))


def test_ria_changes_its_wrong_answers_and_fwf_does_not(facts, words):
    ria, fwf = (draw(facts, words, type=kind, loss_types=("LETTER",)) for kind in ("RIA", "FWF"))
    assert taught(words, ria, 0) != taught(words, ria, 1)
    assert taught(words, fwf, 0) == taught(words, fwf, 1)


def test_every_forget_row_has_a_retain_row_beside_it(facts, words):
    for pair in draw(facts, words, type="GD", loss_types=("LETTER",)).epoch(0):
        assert len(pair.answer) == len(pair.retain)


def test_nothing_to_retain_is_refused_unless_it_weighs_nothing(facts):
    bare = replace(facts, retain=())
    with pytest.raises(UsageError, match="retain_files"):
        unlearn_job(UnlearnConfig(type="GD"), bare, retain_files=None, seed=0)
    assert unlearn_job(UnlearnConfig(type="GD", retain_coeff=0.0), bare, retain_files=None, seed=0)


def test_without_a_retain_loss_no_retain_rows_are_drawn(facts, words):
    assert draw(facts, words, type="GD", retain_coeff=0.0).epoch(0)[0].retain == ()


def test_gd_goes_up_where_ria_goes_down():
    assert method_of(UnlearnConfig(type="GD")).ascend
    assert method_of(UnlearnConfig(type="LORA")).ascend
    assert not method_of(UnlearnConfig(type="RIA")).ascend


def test_frozen_ranges_leave_the_other_blocks_and_nothing_else():
    model = miniature("llama", layers=12)
    parts = LM.from_model(model, word_tokenizer(), name="x").anatomy
    trained = freeze_all_but(model, unfrozen(parts, [(0.0, 0.5)]))
    assert {int(name.split(".")[2]) for name in trained} == {6, 7, 8, 9, 10, 11}
    with pytest.raises(UsageError, match="no block"):
        unfrozen(parts, [(0.0, 1.0)])


def test_cut_trains_three_output_matrices():
    model = miniature("llama", layers=12)
    parts = LM.from_model(model, word_tokenizer(), name="x").anatomy
    trained = freeze_all_but(model, trained_parts(UnlearnConfig(type="CUT", layer=10), parts))
    assert list(trained) == [f"model.layers.{layer}.mlp.down_proj.weight" for layer in (8, 9, 10)]
    with pytest.raises(UsageError, match="layer 12"):
        trained_parts(UnlearnConfig(type="CUT", layer=12), parts)


def test_epochs_one_to_k_of_one_training_are_bit_identical_to_separate_trainings(words, tmp_path: Path):
    from residuum.training.loop import train

    rows = [encode_question(words, replace(ITEM, answer=i % 4), "LETTER_ANSWER") for i in range(10)]

    def weights_by_epoch(epochs: int, optimizer: str) -> list[dict[str, torch.Tensor]]:
        model, seen = miniature("llama", vocab=len(words)), []
        config = constant_config(epochs=epochs, lr=1e-3, warmup_steps=3, optimizer=optimizer, seed=0)
        retraining = Retraining(rows, loss_type="LETTER_ANSWER", batch_size=4, seed=0, pad_id=0)
        train(
            model, retraining, config, tmp_path / f"{optimizer}{epochs}", title=None,
            on_epoch=lambda _: seen.append({name: weight.clone() for name, weight in model.state_dict().items()}),
        )  # fmt: skip
        return seen

    for optimizer in ("lion", "adamw"):
        long = weights_by_epoch(4, optimizer)
        for epochs in (1, 2, 3):
            alone = weights_by_epoch(epochs, optimizer)[-1]
            assert all(torch.equal(alone[name], long[epochs - 1][name]) for name in alone)
