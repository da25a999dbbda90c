"""The teacher-forced pass against the model's own logits, and the bookkeeping around it."""

from __future__ import annotations

import random
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from miniatures import FAMILIES
from patchable import RAGGED, tiny
from residuum.batching import Encoded
from residuum.data.prompts import ChatFormat, RawFormat
from residuum.data.tofu import QA
from residuum.errors import ResiduumError
from residuum.evidence import teacher_force
from residuum.evidence.collect import Reader
from residuum.evidence.gradients import fisher_mask, gradient_norms, mask_size, masked_fisher
from residuum.evidence.rows import JAILBREAK, encode_split, spell
from residuum.evidence.states import cka, entity_states, logit_lens
from residuum.evidence.tokens import ARRAYS, pack, unpack
from residuum.generation import generate
from residuum.models.handles import ModelHandle
from residuum.store import Store
from vocabularies import fast_tokenizer


def rows_of_all_kinds() -> list[Encoded]:
    """Alone and with shared prompts, one label and many, longer than the miniatures' sliding windows, no prompt."""
    draw = random.Random(0)

    def ids(count: int) -> list[int]:
        return [draw.randrange(3, 60) for _ in range(count)]

    rows = [Encoded(tuple(ids(length)), prompt) for length, prompt in [(9, 4), (3, 1), (20, 5), (6, 5), (12, 0)]]
    for prompt in (ids(4), ids(9), ids(9), ids(11)):
        rows += [Encoded((*prompt, *ids(length)), len(prompt)) for length in (1, 5, 12, 3)]
    return rows


def plain_log_probs(lm, row: Encoded, mask=None) -> torch.Tensor:
    """One row by itself through the whole model.  # [labelled token, vocab]."""
    with torch.inference_mode():
        ids = torch.tensor([row.ids])
        logits = lm.model(input_ids=ids, attention_mask=None if mask is None else mask(ids), use_cache=False).logits[0]
    first = max(row.prompt_length, 1)
    return logits[first - 1 : len(row) - 1].double().log_softmax(dim=-1)


@pytest.mark.parametrize("family", FAMILIES)
def test_evidence_is_what_the_model_itself_says(family):
    lm, rows = tiny(family), rows_of_all_kinds()
    for row, found in zip(rows, teacher_force(lm, rows, 64), strict=True):
        log_probs = plain_log_probs(lm, row)
        labels = row.ids[max(row.prompt_length, 1) :]
        mean = (log_probs.exp() * log_probs).sum(dim=1)
        variance = (log_probs.exp() * log_probs**2).sum(dim=1) - mean**2
        assert found.labels.tolist() == list(labels)
        assert found.predictions.tolist() == log_probs.argmax(dim=1).tolist()
        np.testing.assert_allclose(found.log_probs, log_probs[range(len(labels)), labels], atol=2e-5)
        np.testing.assert_allclose(found.mean, mean, atol=2e-5)
        np.testing.assert_allclose(found.variance, variance, atol=2e-4)


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_mask_mode_pad_id_hides_pad_tokens_inside_a_row(family):
    lm = tiny(family)
    lm.tokenizer = SimpleNamespace(pad_token_id=17, eos_token_id=2)
    rows = rows_of_all_kinds()
    assert any(17 in row.ids for row in rows)
    for row, found in zip(rows, teacher_force(lm, rows, 64, mask_mode="pad_id"), strict=True):
        log_probs = plain_log_probs(lm, row, mask=lambda ids: (ids != 17).long())
        labels = row.ids[max(row.prompt_length, 1) :]
        np.testing.assert_allclose(found.log_probs, log_probs[range(len(labels)), labels], atol=2e-5)


def test_the_batch_size_does_not_change_evidence():
    lm, rows = tiny(), rows_of_all_kinds()
    for alone, together in zip(teacher_force(lm, rows, 1), teacher_force(lm, rows, 100_000), strict=True):
        for name in ARRAYS:
            np.testing.assert_allclose(getattr(alone, name), getattr(together, name), atol=1e-5)


def test_a_batch_that_does_not_fit_is_halved(monkeypatch):
    lm, rows = tiny(), rows_of_all_kinds()
    expected = teacher_force(lm, rows)
    real = lm.model.base_model.forward

    def small(*args, **kwargs):
        if kwargs["input_ids"].shape[0] > 3:
            raise RuntimeError("out of memory")
        return real(*args, **kwargs)

    monkeypatch.setattr(lm.model.base_model, "forward", small)
    for one, other in zip(expected, teacher_force(lm, rows), strict=True):
        np.testing.assert_allclose(one.log_probs, other.log_probs, atol=1e-5)


def test_only_a_closing_token_is_cut_from_the_words():
    lm = tiny()
    end = lm.tokenizer.eos_token_id
    closed, opened = teacher_force(lm, [Encoded((5, 6, 7, end), 1), Encoded((5, 6, 7, 8), 1)])
    assert (closed.closed, closed.words.labels.tolist()) == (True, [6, 7])
    assert (opened.closed, opened.words.labels.tolist()) == (False, [6, 7, 8])


def test_a_token_that_the_model_rules_out_leaves_finite_numbers(monkeypatch):
    lm = tiny()

    def barred(hidden):
        logits = type(lm.anatomy).head(lm.anatomy, hidden)
        return torch.where(torch.arange(logits.shape[1]) == 7, -torch.inf, logits)

    monkeypatch.setitem(lm.anatomy.__dict__, "head", barred)
    (found,) = teacher_force(lm, [Encoded((5, 6, 7, 8), 1)])
    assert all(np.isfinite(getattr(found, name)).all() for name in ARRAYS)


def test_scores_that_are_no_numbers_are_an_error_not_an_undefined_item(monkeypatch):
    lm = tiny()
    monkeypatch.setitem(lm.anatomy.__dict__, "head", lambda hidden: torch.full((len(hidden), 60), torch.nan))
    with pytest.raises(ResiduumError, match=r"no numbers for 3 of 3 answer tokens \(NaN in float32\)"):
        teacher_force(lm, [Encoded((5, 6, 7, 8), 1)])


def test_packed_evidence_comes_back_as_it_was():
    found = teacher_force(tiny(), rows_of_all_kinds())
    for one, other in zip(found, unpack(pack(found)), strict=True):
        assert one.closed == other.closed
        for name in ARRAYS:
            np.testing.assert_array_equal(getattr(one, name), getattr(other, name))
    assert unpack(pack([])) == []


# Rows

ITEMS = [
    QA("Where was Ada Brook born?", "Port Ellen.", ("She was born in Port Ellen.",), ("In Oban.", "In Kyle.")),
    QA("Who?", "Ada Brook " * 40),
    QA("Who said it?", "She said.", ("Ada Brook said it.",), ("Yes.",)),
]


@pytest.mark.parametrize("form", [ChatFormat(), RawFormat()])
def test_all_answers_to_a_question_are_encoded_side_by_side(form):
    tokenizer = fast_tokenizer()
    split = encode_split(tokenizer, ITEMS, form)
    place = split.places[2]
    assert split.rows[place.answer] == form.encode(tokenizer, "Who said it?", "She said.")
    assert [spell(tokenizer, split.rows[i].labels).strip() for i in place.paraphrases] == ["Ada Brook said it."]
    assert [spell(tokenizer, split.rows[i].labels).strip() for i in place.perturbed] == ["Yes."]
    assert list(split.prompts[2]) == form.encode_prompt(tokenizer, "Who said it?")
    assert list(split.jailbreak_prompts[2]) == form.encode_prompt(tokenizer, "Who said it?", JAILBREAK)


def test_items_that_do_not_fit_are_left_out_as_a_whole():
    split = encode_split(fast_tokenizer(), ITEMS, RawFormat(), context=60)
    assert (split.kept, split.total, len(split.places)) == ((0, 2), 3, 2)


def test_a_text_without_a_question_stands_alone():
    tokenizer = fast_tokenizer()
    split = encode_split(tokenizer, [QA("", "She said.")], ChatFormat())
    row = split.rows[0]
    assert row.ids[0] == tokenizer.bos_token_id
    assert row.prompt_length == 1
    assert row.ids[-1] == tokenizer.eos_token_id
    assert spell(tokenizer, row.labels) == "She said."


# Generation


def test_batched_texts_equal_those_one_by_one(tiny_world):
    from residuum.data.tofu import load_split
    from residuum.models.loading import load

    lm = load(tiny_world.model("full"), device="cpu")
    questions = [row.question for row in load_split(tiny_world.data, "forget10_perturbed")]
    prompts = [ChatFormat().encode_prompt(lm.tokenizer, question) for question in questions]
    together = generate(lm, prompts, max_new_tokens=40)
    assert together == [generate(lm, [prompt], max_new_tokens=40)[0] for prompt in prompts]


def test_generation_stops_where_the_context_ends(tmp_path):
    lm = tiny("gpt2")  # learned positions: one past the last is an error
    reader = Reader(Store(tmp_path))
    texts = reader.texts(ModelHandle(lm), [[5] * 120, [6] * 128, [7] * 3], 128)
    assert texts[1] == ""
    assert len(texts) == 3


# Inside


def test_gradient_norms_equal_plain_autograd():
    lm = tiny()
    end = lm.tokenizer.eos_token_id
    rows = [Encoded((5, 6, 7, 8, end), 2), Encoded((9, end), 1)]
    found = gradient_norms(lm, rows)
    lm.model.zero_grad()
    logits = lm.model(input_ids=torch.tensor([rows[0].ids])).logits[0]
    torch.nn.functional.cross_entropy(logits[1:3], torch.tensor([7, 8])).backward()
    norms = [weight.grad.norm() for weight in lm.model.parameters()]
    assert found[0] == pytest.approx(float(torch.stack(norms).mean()), rel=1e-5)
    assert found[1] == 0.0
    lm.model.zero_grad()


def squared_gradients(lm, spot):
    lm.model.zero_grad()
    logits = lm.model(input_ids=torch.tensor([spot.ids])).logits[0]
    torch.nn.functional.cross_entropy(logits[list(spot.rows)], torch.tensor(spot.labels)).backward()
    return [torch.cat([w.grad.flatten() ** 2 for w in block.parameters()]) for block in lm.anatomy.blocks]


def test_masked_fisher_equals_plain_autograd():
    full, retain, model = (tiny(seed=seed, layers=2) for seed in range(3))
    spots = RAGGED[:3]
    plain = {lm.name: [squared_gradients(lm, spot) for spot in spots] for lm in (full, retain, model)}
    mask = fisher_mask(full, retain, spots)
    found = masked_fisher(model, spots, mask)
    for block in range(2):
        means = {name: torch.stack([own[block] for own in values]).mean(dim=0) for name, values in plain.items()}
        excess = (means[retain.name] - means[full.name]).clamp_min(0)
        for place, fraction in enumerate((1e-4, 1e-3, 1e-2)):
            top = torch.topk(excess, mask_size(len(excess), fraction)).indices
            expected = [float(values[block][top].mean()) for values in plain[model.name]]
            np.testing.assert_allclose(found[:, block, place], expected, rtol=1e-4)
    assert all(weight.requires_grad for weight in model.model.parameters())


@pytest.mark.parametrize("family", ["llama", "gemma2", "gpt2"])
def test_entity_states_are_the_raw_block_outputs(family):
    lm = tiny(family)
    found = entity_states(lm, RAGGED, 40)
    for i, spot in enumerate(RAGGED):
        start = sum(len(other.rows) for other in RAGGED[:i])
        with torch.inference_mode():
            out = lm.model(input_ids=torch.tensor([spot.ids]), output_hidden_states=True)
        for layer in range(lm.anatomy.num_layers - 1):
            own = found[layer][start : start + len(spot.rows)]
            torch.testing.assert_close(own, out.hidden_states[layer + 1][0, list(spot.rows)], atol=2e-5, rtol=1e-4)
        logits = lm.anatomy.logits(found[-1][start : start + len(spot.rows)])
        torch.testing.assert_close(logits, out.logits[0, list(spot.rows)], atol=2e-4, rtol=1e-4)


def test_the_logit_lens_of_the_last_layer_is_the_model_itself():
    lm = tiny()
    found = logit_lens(lm, entity_states(lm, RAGGED), RAGGED)
    for spot, column in zip(RAGGED, found[:, -1], strict=True):
        row = Encoded(spot.ids[: spot.rows.stop + 1], spot.rows.start + 1)
        expected = plain_log_probs(lm, row)[range(len(spot.labels)), list(spot.labels)].mean()
        assert column == pytest.approx(float(expected), abs=1e-4)


def test_cka_equals_its_definition_and_resampling_repeats_rows():
    rng = np.random.default_rng(0)
    x, y = (torch.tensor(rng.normal(size=(sum(len(s.rows) for s in RAGGED), 6)), dtype=torch.float32) for _ in range(2))
    draws = np.array([[2, 0, 1, 1, 0, 3, 0], [1, 1, 1, 1, 1, 1, 1]], dtype=float)
    found = cka([x], [y], RAGGED, draws)[:, 0]

    def plain(a, b):
        a, b = a - a.mean(axis=0), b - b.mean(axis=0)
        return np.linalg.norm(b.T @ a) ** 2 / (np.linalg.norm(a.T @ a) * np.linalg.norm(b.T @ b))

    times = np.repeat(draws[0].astype(int), [len(spot.rows) for spot in RAGGED])
    x, y = x.double().numpy(), y.double().numpy()
    assert found[0] == pytest.approx(plain(x, y), abs=1e-6)
    assert found[1] == pytest.approx(plain(np.repeat(x, times, axis=0), np.repeat(y, times, axis=0)), abs=1e-6)
    assert found[2] == pytest.approx(found[0])


def test_cka_of_a_model_with_itself_is_one():
    states = entity_states(tiny(), RAGGED)
    np.testing.assert_allclose(cka(states, states, RAGGED, np.ones((0, len(RAGGED)))), 1.0, atol=1e-6)
