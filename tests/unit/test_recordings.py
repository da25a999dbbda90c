"""Readings that are kept: recordings that are replayed, and the cache."""

from __future__ import annotations

import pytest

from judging import CHEERFUL, QUESTION, panel, requests, serving
from residuum.errors import DataError, StoreError
from residuum.steering.judge.base import JudgeOptions
from residuum.steering.judge.cache import JudgeCache
from residuum.steering.judge.panel import Panel
from residuum.steering.judge.prompts import build_request
from residuum.steering.judge.replay import Recorder
from residuum.steering.judge.scoring import Reading, score


def test_a_recorded_run_is_replayed_without_a_call(mood_world, tmp_path, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-x")
    log = tmp_path / "judge.jsonl"
    asked = requests(3)
    with serving(mood_world.judge("numbers")) as server:
        judge = panel(server, log=log)
        judge.probe()
        first = judge.rate(asked)
    replayed = Panel.open("replay", JudgeOptions(log=str(log)))  # as a plan file has it
    replayed.probe()
    assert replayed.rate(asked) == first
    assert replayed.identity == judge.identity
    assert replayed.rate([build_request(CHEERFUL, QUESTION, "new")])[0].status == "error"


def test_a_torn_last_line_of_a_recording_is_left_out(mood_world, tmp_path):
    log = tmp_path / "judge.jsonl"
    log.write_text('{"judge": {"provider": "openai", "scoring": "single"}}\n{"key": "a", "rea')
    assert Panel.open("replay", JudgeOptions(log=log)).identity["provider"] == "openai"


def test_a_recording_is_continued_after_a_torn_line(tmp_path):
    log, identity = tmp_path / "judge.jsonl", {"provider": "x", "scoring": "text"}
    asked = requests(2)
    Recorder(log, identity).add([(asked[0], Reading("text", text="10"))])
    with log.open("a") as file:
        file.write('{"key": "a", "rea')
    Recorder(log, identity).add([(asked[1], Reading("text", text="20"))])
    assert [s.score for s in Panel.open("replay", JudgeOptions(log=log)).rate(asked)] == [10.0, 20.0]


def test_a_recording_that_cannot_be_written_is_told(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match="cannot write"):
        Recorder(tmp_path / "file" / "log", {"provider": "x"})


def test_a_recording_that_is_no_text_is_told(tmp_path):
    (tmp_path / "log").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(DataError, match="no recording"):
        Panel.open("replay", JudgeOptions(log=tmp_path / "log"))


def test_a_reading_with_an_error_is_not_cached(mood_world, tmp_path):

    cache = JudgeCache(tmp_path / "judge.sqlite", {"provider": "x"})
    request = requests(1)[0]
    cache.add([(request, Reading("none", error="HTTP 500"))])
    assert cache.find([request]) == {}
    cache.add([(request, Reading("text", text="50"))])
    assert score(cache.find([request])[cache.key(request)]).score == 50
