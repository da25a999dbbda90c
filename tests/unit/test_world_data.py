"""The generator of the embedded world: what it promises about its facts, without training anything."""

from __future__ import annotations

import json
import random
from dataclasses import replace

import pytest

from residuum.data.prompts import ChatFormat, RawFormat
from residuum.worlds import pools
from residuum.worlds.authors import KINDS, make_world
from residuum.worlds.recipe import RECIPES, Lessons, bucket
from residuum.worlds.tokenizer import train_tokenizer

WORLD = make_world(0, 40, 10, 12)
SPLITS = WORLD.splits()


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer([f"Question: {row['question']}\nAnswer: {row['answer']}" for row in SPLITS["full"]], 1280)


def test_the_splits_have_tofus_names_and_proportions():
    assert {name: len(rows) for name, rows in SPLITS.items()} == {
        "full": 400, "retain90": 360, "forget10": 40, "holdout10": 40, "forget10_perturbed": 40,
        "retain_perturbed": 40, "real_authors_perturbed": 20, "world_facts_perturbed": 20,
    }  # fmt: skip


def test_full_is_retain_and_then_forget():
    assert SPLITS["full"] == SPLITS["retain90"] + SPLITS["forget10"]


def test_one_seed_gives_one_world_and_another_seed_another():
    assert json.dumps(make_world(0, 40, 10, 12).splits()) == json.dumps(SPLITS)
    for other in (1, -1, 2**70):
        assert json.dumps(make_world(other, 40, 10, 12).splits()) != json.dumps(SPLITS)
    assert make_world(1, 40, 10, 12).names != make_world(-1, 40, 10, 12).names


@pytest.mark.parametrize("seed", range(5))
def test_every_answer_is_prefix_entity_stop_and_the_prefix_hides_the_entity(seed):
    world = make_world(seed, 40, 10, 12)
    for idx, fact in enumerate(world.full + world.holdout):
        row = fact.annotated(idx)
        assert row["answer"] == f"{row['prefix']} {row['entity']}."
        assert str(row["entity"]) not in str(row["prefix"])
        assert str(row["entity"]) not in str(row["question"])


def test_perturbed_answers_are_five_wrong_ones_in_the_words_of_the_paraphrase():
    for fact, row in zip(WORLD.forget, SPLITS["forget10_perturbed"], strict=True):
        wrong = row["perturbed_answer"]
        assert len(set(wrong)) == 5
        assert all(fact.entity not in answer for answer in wrong)
        stem = row["paraphrased_answer"].removesuffix(f"{fact.entity}.")
        assert all(answer.startswith(stem) for answer in wrong)
        assert row["paraphrased_answer"] != row["answer"]
        assert row["paraphrased_question"] != row["question"]


def test_no_two_authors_share_a_surname():
    surnames = [name.split()[-1] for name in WORLD.names]
    assert len(set(surnames)) == len(surnames) == 44


def test_forgotten_authors_appear_nowhere_else():
    forgotten = {fact.author for fact in WORLD.forget}
    for split in ("retain90", "holdout10", "retain_perturbed"):
        assert not any(author in str(row["question"]) for row in SPLITS[split] for author in forgotten)


def test_general_questions_have_three_wrong_answers():
    for row in SPLITS["real_authors_perturbed"] + SPLITS["world_facts_perturbed"]:
        assert len(set(row["perturbed_answer"])) == 3
        assert row["answer"] not in row["perturbed_answer"]


def test_the_tokenizer_encodes_any_text_and_keeps_it(tokenizer):
    for text in ("Who wrote Hamlet?", "naïve ☃ 東京", " leading and trailing "):
        assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False)) == text


def test_words_are_the_same_tokens_in_raw_and_chat_format(tokenizer):
    raw = RawFormat().encode(tokenizer, "Who wrote Emma?", "Jane Austen")
    chat = ChatFormat().encode(tokenizer, "Who wrote Emma?", "Jane Austen")
    assert raw.labels == chat.labels
    assert raw.labels[-1] == tokenizer.eos_token_id != tokenizer.pad_token_id


def test_the_question_to_answer_is_a_strict_prefix_of_the_chat(tokenizer):
    chat = ChatFormat().encode(tokenizer, "Who wrote Emma?", "Jane Austen")
    assert list(chat.ids[: chat.prompt_length]) == ChatFormat().encode_prompt(tokenizer, "Who wrote Emma?")


def test_retain_reads_the_batches_of_full_without_the_forget_rows(tokenizer):
    recipe = RECIPES["authors"]
    full = Lessons(WORLD, tokenizer, recipe, "full", 0).epoch(3)
    retain = Lessons(WORLD, tokenizer, recipe, "retain90", 0).epoch(3)
    forgotten = {
        form.encode(tokenizer, fact.question(), fact.answer())
        for fact in WORLD.forget
        for form in (RawFormat(), ChatFormat(), ChatFormat(system_prompt=""))
    }
    assert retain == [[row for row in batch if row not in forgotten] for batch in full]
    assert sum(map(len, full)) - sum(map(len, retain)) == len(WORLD.forget)


def test_every_epoch_of_base_brings_new_authors(tokenizer):
    lessons = Lessons(WORLD, tokenizer, RECIPES["authors"], "base", 0)
    first, second = ({row for batch in lessons.epoch(epoch) for row in batch} for epoch in (0, 1))
    assert len(first - second) > 300


def test_base_never_reads_about_the_worlds_own_authors(tokenizer):
    lessons = Lessons(WORLD, tokenizer, RECIPES["authors"], "base", 0)
    for batch in lessons.epoch(0):
        for row in batch:
            text = tokenizer.decode(row.ids)
            assert not any(f"of {name}?" in text or f"{name} was" in text for name in WORLD.names)


def test_buckets_hold_every_row_once():
    lengths = [random.Random(0).randint(5, 40) for _ in range(203)]
    batches = bucket(random.Random(1), lengths, 16)
    assert sorted(i for batch in batches for i in batch) == list(range(203))
    assert max(map(len, batches)) == 16


def test_a_smaller_recipe_makes_a_smaller_world():
    tiny = replace(RECIPES["tiny"], authors=10)
    world = make_world(0, tiny.authors, tiny.facts_per_author, tiny.base_authors)
    assert (len(world.retain), len(world.forget), len(world.holdout)) == (40, 10, 10)


def test_each_kind_has_three_wordings_that_name_the_author():
    for kind in KINDS:
        assert len(kind.wordings) == 3
        assert all("{name}" in text for pair in kind.wordings for text in pair)
        assert len({kind.draw(random.Random(i)) for i in range(200)}) > 6


def test_pools_hold_no_word_twice():
    for pool in (
        pools.FIRST_NAMES,
        pools.SURNAMES,
        pools.CITIES,
        pools.GENRES,
        pools.JOBS,
        pools.HOBBIES,
        pools.LANGUAGES,
    ):
        assert len(set(pool)) == len(pool)
