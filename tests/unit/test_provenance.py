"""Where a result comes from, without secrets."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from residuum.store import canonical, provenance
from residuum.store.origin import git_revision, redact


def test_provenance_says_what_is_needed_to_make_a_result_again() -> None:
    record = provenance(seed=0, dtype="float32", data="d", weights="w", batch=4)
    assert record["settings"] == {"batch": 4}
    assert record["versions"].keys() == {"python", "residuum", "torch", "transformers", "numpy"}
    assert record.keys() >= {"seed", "dtype", "data", "weights", "git", "platform", "threads", "command", "time"}
    canonical(record)


def test_a_folder_without_a_checkout_has_no_revision(tmp_path: Path) -> None:
    assert git_revision(tmp_path) is None


def test_the_revision_of_a_checkout_says_when_it_has_changes(tmp_path: Path) -> None:
    def git(*arguments: str) -> str:
        identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
        return subprocess.run(
            ["git", *identity, *arguments], cwd=tmp_path, capture_output=True, text=True, check=True
        ).stdout

    git("init")
    (tmp_path / "file").write_text("one")
    git("add", "file")
    git("commit", "--message", "first")
    commit = git("rev-parse", "HEAD").strip()
    clean = git_revision(tmp_path)
    (tmp_path / "file").write_text("two")
    git_revision.cache_clear()
    assert (clean, git_revision(tmp_path)) == (commit, f"{commit}-dirty")


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        (["--api-key", "abc", "x"], ["--api-key", "***", "x"]),
        (["--hf_token=abc"], ["--hf_token=***"]),
        (["OPENAI_API_KEY=abc"], ["OPENAI_API_KEY=***"]),
        (["--judge", "sk-0123456789abcdefXYZ"], ["--judge", "***"]),
        (["https://me:pass@host/path"], ["https://***@host/path"]),
        (["https://host/v1?key=ab12"], ["https://host/v1?key=***"]),
        (
            ["--judge-base-url=https://h.x/v1?v=1&api_key=ab12&b=2"],
            ["--judge-base-url=https://h.x/v1?v=1&api_key=***&b=2"],
        ),
        (["https://host/v1?accessToken=ab12"], ["https://host/v1?accessToken=***"]),
        (["--passWord=ab12", "--maxTokens=5"], ["--passWord=***", "--maxTokens=5"]),
        (["https://host/v1?tokens=5&keyboard=us"], ["https://host/v1?tokens=5&keyboard=us"]),
        (["--max-tokens", "512", "--tokenizer", "gpt2"], ["--max-tokens", "512", "--tokenizer", "gpt2"]),
        (["--token", "--verbose"], ["--token", "--verbose"]),
        (["simnpo_lr2e5_b35_a1_d1_g0125_ep5"], ["simnpo_lr2e5_b35_a1_d1_g0125_ep5"]),
    ],
)
def test_a_recorded_command_hides_secrets_and_only_those(given: list[str], shown: list[str]) -> None:
    assert redact(given) == shown
