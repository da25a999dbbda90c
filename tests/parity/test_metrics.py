"""Against what was published, and against real text: aggregates, ROUGE, chat labels."""

from __future__ import annotations

import json

import pytest

from residuum.data.prompts import ChatFormat
from residuum.data.tofu import load_split
from residuum.evidence.rows import JAILBREAK, encode_split, spell
from residuum.metrics.aggregate import (
    memorization,
    model_utility,
    overall,
    privacy,
    privacy_mia,
    relative_utility,
    utility,
)
from residuum.metrics.generation import rouge

PARTS = tuple(f"{split}_{kind}" for split in ("retain", "ra", "wf") for kind in ("q_prob", "q_rouge", "truth_ratio"))


@pytest.fixture(scope="module")
def published(shared_data):
    return json.loads((shared_data / "published" / "published_method_results.json").read_text())


def recomputed(row, full_utility):
    """The axes of one published model from their published inputs."""
    mem = memorization(*(1 - row[f"one_minus_{part}"] for part in ("es", "em", "paraprob", "truth")))
    mia = privacy_mia(row["s_loss"], row["s_zlib"], row["s_mink"], row["s_minkpp"])
    nine = model_utility(*(row[part] for part in PARTS))
    useful = utility(nine, row["fluency"])
    relative = relative_utility(useful, full_utility)
    both = privacy(mia, row["uds"])
    return {
        "mem": mem, "privacy_mia": mia, "privacy": both, "model_utility": nine, "utility": useful,
        "utility_rel": relative, "overall": overall(mem, both, relative),
    }  # fmt: skip


@pytest.mark.parametrize(
    "axis", ["mem", "privacy_mia", "privacy", "model_utility", "utility", "utility_rel", "overall"]
)
def test_published_axes_follow_from_their_inputs(published, axis):
    rows = published["models"]
    assert len(rows) == 152
    errors = [abs(recomputed(row, published["full_utility"][row["epoch"]])[axis] - row[axis]) for row in rows]
    assert max(errors) <= 1e-12


def test_rouge_is_that_of_the_rouge_score_package_on_real_answers(shared_data):
    from rouge_score.rouge_scorer import RougeScorer

    scorer = RougeScorer(["rougeL"], use_stemmer=True)
    items = load_split(shared_data / "tofu", "forget10_perturbed")[:100]
    truths, texts = [item.answer for item in items], [item.perturbed_answers[0] for item in items]
    expected = [scorer.score(truth, text)["rougeL"].recall for truth, text in zip(truths, texts, strict=True)]
    assert rouge(texts, truths).tolist() == expected


@pytest.fixture(scope="module")
def llama(shared_data):
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(shared_data / "tokenizers" / "llama3_2")


@pytest.mark.parametrize("split", ["forget10_perturbed", "holdout10", "world_facts_perturbed"])
def test_chat_labels_on_real_data_are_the_answer_and_its_end(llama, shared_data, split):
    items = load_split(shared_data / "tofu", split)[::20]
    encoded = encode_split(llama, items, ChatFormat())
    for item, place, prompt in zip(items, encoded.places, encoded.prompts, strict=True):
        answers = [item.answer, *item.paraphrased_answers, *item.perturbed_answers]
        for i, answer in zip([place.answer, *place.paraphrases, *place.perturbed], answers, strict=True):
            row = encoded.rows[i]
            assert row.labels[-1] == llama.eos_token_id
            assert row.labels.count(llama.eos_token_id) == 1
            # The template strips the answer; apart from that the labels spell it exactly.
            assert spell(llama, row.labels) == answer.strip()
            assert row.ids[: row.prompt_length] == prompt
        text = llama.decode(prompt)
        assert "Today Date: 10 Apr 2025\n\nYou are a helpful assistant.<|eot_id|>" in text
        assert text.endswith(f"{item.question.strip()}<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n")


def test_the_jailbreak_prefix_follows_the_generation_prompt(llama, shared_data):
    items = load_split(shared_data / "tofu", "forget10_perturbed")[:3]
    encoded = encode_split(llama, items, ChatFormat())
    for plain, forced in zip(encoded.prompts, encoded.jailbreak_prompts, strict=True):
        assert forced[: len(plain)] == plain
        assert llama.decode(forced[len(plain) :]) == JAILBREAK
