"""The birthday generator: no defect of the published files, the same bytes for the same seed."""

from __future__ import annotations

from collections import Counter

import pytest

from residuum.data.mcq import load_corpus, load_mcq, mcq_prompt
from residuum.errors import InputError, UnknownName, UsageError
from residuum.rtt.facts import load_mcq_facts
from residuum.store.hashing import file_hash
from residuum.worlds.birthdays import draw_birthdays, word_tokenizer, write_birthdays
from residuum.worlds.people import RECIPES, Lessons, build_birthdays


@pytest.fixture(scope="module")
def drawn():
    return draw_birthdays(42)


def test_the_default_is_as_large_as_the_published_set(drawn):
    assert {split: len(people) for split, people in drawn.items()} == {
        "dev": 10,
        **{f"split_{i}": 157 for i in range(10)},
    }


def test_nobody_is_in_two_splits_or_twice_in_one(drawn):
    names = [person.name for people in drawn.values() for person in people]
    assert len(set(names)) == len(names)


def test_the_four_choices_differ_and_lie_in_range(drawn):
    for people in drawn.values():
        for person in people:
            assert len(set(person.choices)) == 4
            assert all(1900 <= year <= 2020 for year in person.choices)


def test_the_right_answer_stands_equally_often_at_each_place(drawn):
    for people in drawn.values():
        counts = Counter(person.answer for person in people)
        assert max(counts.values()) - min(counts.values()) <= 1


def test_a_split_does_not_depend_on_the_size_of_the_others():
    few, many = draw_birthdays(1, splits=2, items=5), draw_birthdays(1, splits=4, items=5)
    assert [p.choices for p in few["split_1"]] == [p.choices for p in many["split_1"]]


def test_more_people_than_names_are_refused():
    with pytest.raises(UsageError, match="names"):
        draw_birthdays(0, splits=100)


def test_files_are_read_back_as_written_and_match_the_manifest(tmp_path):
    drawn = draw_birthdays(3, splits=3, items=6)
    manifest = write_birthdays(tmp_path, drawn, forget=["split_0", "split_1"], seed=3)
    facts = load_mcq_facts(tmp_path)
    assert [split.name for split in facts.splits] == ["split_0", "split_1"]
    assert [split.name for split in facts.retain] == ["split_2"]
    assert len(facts.dev) == 10
    import json

    hashes = json.loads(manifest.read_text())["sha256"]
    assert hashes == {name: file_hash(tmp_path / name) for name in hashes}


def test_wrong_sentences_say_wrong_years_and_true_ones_the_right_one(tmp_path):
    drawn = draw_birthdays(3, splits=1, items=8)
    write_birthdays(tmp_path, drawn, forget=["split_0"], seed=3)
    years = {person.name: person.year for person in drawn["split_0"]}
    for prefix, told in (("corpus_", 1), ("whp_corpus_", 3), ("fwf_corpus_", 1)):
        rows = load_corpus(tmp_path / f"{prefix}split_0.jsonl")
        assert len(rows) == 3 * len(years)
        for name, year in years.items():
            said = {row.text.rstrip(".").split()[-1] for row in rows if name in row.text}
            assert len(said) == told
            assert (str(year) in said) == (prefix == "corpus_")


def test_the_same_seed_gives_the_same_bytes(tmp_path):
    for folder in ("one", "two"):
        write_birthdays(tmp_path / folder, draw_birthdays(5, splits=2, items=4), forget=["split_0"], seed=5)
    for path in (tmp_path / "one").iterdir():
        assert path.read_bytes() == (tmp_path / "two" / path.name).read_bytes()


def test_a_question_is_fifteen_tokens_and_the_letter_is_one(tmp_path):
    write_birthdays(tmp_path, draw_birthdays(5, splits=1, items=4), forget=["split_0"], seed=5)
    tokenizer = word_tokenizer()
    for item in load_mcq(tmp_path / "split_0.jsonl"):
        ids = tokenizer(mcq_prompt(item))["input_ids"]
        assert len(ids) == 15
        assert tokenizer.unk_token_id not in ids


def test_lessons_show_fresh_choices_and_never_a_person_to_be_forgotten_to_the_naive_model():
    recipe = RECIPES["tiny"]
    drawn = draw_birthdays(0, splits=4, items=4, spread=recipe.spread)
    tokenizer = word_tokenizer()
    lessons = Lessons(recipe, drawn, tokenizer, 0, "naive")
    forgotten = {word for i in range(3) for person in drawn[f"split_{i}"] for word in [person.name]}
    rows = [row for epoch in range(1) for batch in lessons.epoch(epoch) for row in batch]
    said = [" ".join(tokenizer.convert_ids_to_tokens(row.ids)) for row in rows]
    assert not [text for text in said for name in forgotten if name in text]
    assert lessons.epoch(0) == lessons.epoch(0)


def test_an_unknown_recipe_is_refused():
    with pytest.raises(UnknownName, match="birthdays"):
        build_birthdays(name="birthday")


def test_a_folder_of_another_seed_is_refused(tmp_path):
    build_birthdays(tmp_path, name="tiny", title=None)
    with pytest.raises(InputError, match="another seed"):
        build_birthdays(tmp_path, name="tiny", seed=1, title=None)
