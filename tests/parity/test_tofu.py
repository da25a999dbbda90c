"""Real TOFU and Years files, and real chat templates."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from residuum.data.check import check_file
from residuum.data.mcq import load_corpus, load_mcq, load_splits, mcq_prompt
from residuum.data.prompts import ChatFormat, RawFormat
from residuum.data.tofu import QA, SPLITS, data_hash, load_idk, load_split
from residuum.errors import DataError


@pytest.fixture(scope="module")
def llama(shared_data: Path) -> PreTrainedTokenizerBase:
    return AutoTokenizer.from_pretrained(shared_data / "tokenizers" / "llama3_2")


@pytest.fixture(scope="module")
def forget(shared_data: Path) -> list[QA]:
    return load_split(shared_data / "tofu", "forget10_perturbed")


@pytest.fixture
def years(shared_data: Path) -> Path:
    return shared_data / "rtt" / "dates-years-trimmed"


def test_every_split_has_its_published_number_of_rows(shared_data: Path) -> None:
    here = [split for split in SPLITS if (shared_data / "tofu" / f"{split}.jsonl").is_file()]
    assert {split: len(load_split(shared_data / "tofu", split)) for split in here} == {s: SPLITS[s] for s in here}
    assert len(here) >= 8


@pytest.mark.parametrize(
    ("split", "paraphrases", "perturbed"),
    [
        ("forget10_perturbed", 1, 5),
        ("retain_perturbed", 1, 5),
        ("real_authors_perturbed", 0, 3),
        ("world_facts_perturbed", 0, 3),
        ("holdout10", 0, 0),
    ],
)
def test_a_split_brings_its_other_answers(shared_data: Path, split: str, paraphrases: int, perturbed: int) -> None:
    rows = load_split(shared_data / "tofu", split)
    assert {(len(r.paraphrased_answers), len(r.perturbed_answers)) for r in rows} == {(paraphrases, perturbed)}


def test_forget_and_retain_make_up_full(shared_data: Path) -> None:
    full, retain, forget = (load_split(shared_data / "tofu", s) for s in ("full", "retain90", "forget10"))
    assert full == retain + forget


def test_there_are_a_hundred_idk_answers(shared_data: Path) -> None:
    assert len(load_idk(shared_data / "tofu")) == 100


def test_the_hash_of_a_file_is_that_of_its_rows(shared_data: Path) -> None:
    path = shared_data / "tofu" / "forget10.jsonl"
    assert data_hash(path) == data_hash([json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()])


@pytest.mark.parametrize("system_prompt", ["", "You are a helpful assistant."])
def test_chat_labels_read_as_the_answer_and_its_end(
    llama: PreTrainedTokenizerBase, forget: list[QA], system_prompt: str
) -> None:
    chat = ChatFormat(system_prompt=system_prompt)
    for qa in forget[:60]:
        encoded = chat.encode(llama, qa.question, qa.answer)
        assert llama.decode(encoded.labels) == f"{qa.answer}<|eot_id|>"
        assert list(encoded.ids[: encoded.prompt_length]) == chat.encode_prompt(llama, qa.question)


def test_the_chat_says_the_fixed_date(llama: PreTrainedTokenizerBase) -> None:
    assert "Today Date: 10 Apr 2025\n" in llama.decode(ChatFormat().encode(llama, "Q?", "A.").ids)
    assert "Today Date: 26 Jul 2024\n" in llama.decode(ChatFormat(date="26 Jul 2024").encode_prompt(llama, "Q?"))


def test_the_whole_llama_chat_by_hand(llama: PreTrainedTokenizerBase) -> None:
    head = "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nCutting Knowledge Date: December 2023\n"
    user = "<|start_header_id|>user<|end_header_id|>\n\nQ?<|eot_id|>"
    assistant = "<|start_header_id|>assistant<|end_header_id|>\n\n"
    text = f"{head}Today Date: 10 Apr 2025\n\nYou are a helpful assistant.<|eot_id|>{user}{assistant}A.<|eot_id|>"
    assert llama.decode(ChatFormat().encode(llama, "Q?", "A.").ids) == text


def test_raw_labels_read_as_the_answer_and_its_end(llama: PreTrainedTokenizerBase, forget: list[QA]) -> None:
    for qa in forget[:60]:
        encoded = RawFormat().encode(llama, qa.question, qa.answer)
        assert llama.decode(encoded.labels) == f" {qa.answer}<|eot_id|>"
        assert llama.decode(encoded.ids).startswith(f"<|begin_of_text|>Question: {qa.question}\nAnswer: ")


def test_the_raw_format_gives_the_tokens_of_the_plain_text(llama: PreTrainedTokenizerBase, forget: list[QA]) -> None:
    for qa in forget[:60]:
        plain = llama(f"Question: {qa.question}\nAnswer: {qa.answer}")["input_ids"]
        assert list(RawFormat().encode(llama, qa.question, qa.answer).ids) == [*plain, llama.eos_token_id]


def test_no_chat_is_longer_than_the_published_maximum(llama: PreTrainedTokenizerBase, forget: list[QA]) -> None:
    assert max(len(ChatFormat().encode(llama, qa.question, qa.answer)) for qa in forget) <= 512


def test_the_years_splits_load_in_order(years: Path) -> None:
    assert {name: len(items) for name, items in load_splits(years).items()} == {
        "split_0": 158,
        "split_1": 158,
        "split_2": 158,
        "split_3": 158,
        "split_4": 157,
    }


def test_years_choices_are_strings_even_where_the_file_has_numbers(years: Path) -> None:
    assert load_mcq(years / "dev.jsonl")[0].choices == ("1906", "1910", "1909", "1912")


@pytest.mark.parametrize("prefix", ["corpus", "whp_corpus", "fwf_corpus"])
def test_the_sentences_of_years_load(years: Path, prefix: str) -> None:
    sentences = load_corpus(years / f"{prefix}_split_0.jsonl")
    assert len(sentences) == 471
    assert {len(s.wrong_answers) for s in sentences} == ({0} if prefix == "corpus" else {3})


def test_a_years_prompt_by_hand(years: Path) -> None:
    first = load_splits(years)["split_0"][0]
    question = "When did the following event happen?\nThe First Congo War begins."
    assert mcq_prompt(first) == f"{question}\nA. 1994\nB. 1995\nC. 1996\nD. 1997\nAnswer:"


def test_a_spoilt_years_record_is_refused_with_file_and_line(years: Path, tmp_path: Path) -> None:
    lines = (years / "split_0.jsonl").read_text(encoding="utf-8").splitlines()
    lines[40] = json.dumps({**json.loads(lines[40]), "answer": 4})
    (tmp_path / "split_0.jsonl").write_text("\n".join(lines), encoding="utf-8")
    with pytest.raises(DataError, match=r"split_0\.jsonl:41, field 'answer': .*not 4"):
        load_splits(tmp_path)


def test_every_real_file_passes_the_check(shared_data: Path) -> None:
    files = [f for pattern in ("tofu/*", "rtt/*/*.jsonl", "uds/*.json") for f in shared_data.glob(pattern)]
    reports = {f.name: check_file(f) for f in files}
    assert {name: report.errors for name, report in reports.items() if not report.ok} == {}
    assert {r.kind for r in reports.values()} == {"tofu", "idk", "mcq", "corpus", "examples"}
