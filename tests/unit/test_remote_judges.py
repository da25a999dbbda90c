"""Judges behind an address: small models through the real clients over loopback, with every fault a server can have."""

from __future__ import annotations

import time

import pytest

from judging import CHEERFUL, FAST, QUESTION, TEXTS, local, panel, requests, serving
from residuum.errors import Unavailable, UnknownName, UsageError
from residuum.steering.judge.base import JudgeOptions
from residuum.steering.judge.calls import Caller, Refused
from residuum.steering.judge.keys import without_key
from residuum.steering.judge.panel import Panel
from residuum.steering.judge.prompts import build_request
from residuum.steering.judge.scoring import Reading


@pytest.fixture(autouse=True)
def _key(monkeypatch, tmp_path):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-test-secret-0123456789abcdef")
    monkeypatch.setenv("GEMINI_API_KEY", "AIza-test-secret-0123456789")
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    monkeypatch.chdir(tmp_path)


# Through the official OpenAI client


def test_the_openai_client_reads_the_same_scores_as_the_model_in_process(mood_world):
    asked = requests(6)
    with serving(mood_world.judge("numbers")) as server:
        remote = panel(server)
        remote.probe()
        over_the_wire = [s.score for s in remote.rate(asked)]
        remote.close()
    here = local(mood_world.judge("numbers"))
    here.probe()
    assert over_the_wire == pytest.approx([s.score for s in here.rate(asked)], abs=1e-3)


def test_openai_base_url_is_honoured(mood_world, monkeypatch):
    with serving(mood_world.judge("numbers")) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        judge = Panel.open("openai", JudgeOptions(**FAST))
        judge.probe()
        assert judge.identity == {"provider": "openai", "model": "gpt-4.1-mini", "base_url": server.url, "scoring": "single"}  # fmt: skip
        assert server.requests == 2


def test_a_remote_digit_judge_is_found_out_and_the_ways_out_are_named(mood_world):
    with serving(mood_world.judge("digits")) as server, pytest.raises(Unavailable) as caught:
        panel(server).probe()
    assert "5, 7" in str(caught.value)
    assert "--judge-scoring letters" in str(caught.value)
    assert "--judge hf" in str(caught.value)


def test_a_remote_digit_judge_rates_by_letters(mood_world):
    with serving(mood_world.judge("digits")) as server:
        judge = panel(server, scoring="letters")
        judge.probe()
        good, bad = judge.rate([judge.request(CHEERFUL, QUESTION, TEXTS[name]) for name in ("good", "bad")])
    assert good.score > 75
    assert bad.score < 25


def test_a_remote_judge_can_be_read_as_text(mood_world):
    with serving(mood_world.judge("digits")) as server:
        judge = panel(server, scoring="text")
        judge.probe()
        good, bad = judge.rate([build_request(CHEERFUL, QUESTION, TEXTS[name]) for name in ("good", "bad")])
    assert good.score is not None
    assert bad.score is not None


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("no logprobs", "no log-probabilities"),
        ("few logprobs", "5 likeliest"),
        ("nonsense", "'banana"),
        ("status 401", "refuses all calls"),
        ("status 404", "refuses all calls"),
        ("status 400", "cannot be used"),
    ],
)
def test_a_judge_that_cannot_rate_is_found_out_before_anything_is_spent(mood_world, fault, message):
    with serving(mood_world.judge("numbers"), always=fault) as server, pytest.raises(Unavailable, match=message):
        panel(server).probe()


def test_nobody_listening_is_a_sentence():
    judge = Panel.open("openai", JudgeOptions(base_url="http://127.0.0.1:9/v1", retries=2, **FAST))
    with pytest.raises(Unavailable, match="no connection"):
        judge.probe()


@pytest.mark.parametrize(
    "fault", ["status 429 0.3", "status 500", "status 503", "empty", "no logprobs", "cut", "not JSON"]
)
def test_passing_faults_are_retried_until_the_rating_is_there(mood_world, fault):
    with serving(mood_world.judge("numbers")) as server:
        judge = panel(server, concurrency=1)
        judge.probe()
        server.faults.extend([fault, fault])
        before = server.requests
        assert judge.rate(requests(1))[0].status == "ok"
        assert server.requests - before == 3
        assert judge.judge.usage()["retries"] == 2


def test_retry_after_is_waited_for(mood_world):
    with serving(mood_world.judge("numbers")) as server:
        judge = panel(server)
        judge.probe()
        server.faults.append("status 429 0.5")
        started = time.monotonic()
        assert judge.rate(requests(1))[0].status == "ok"
        assert time.monotonic() - started >= 0.5


def test_a_call_that_hangs_is_given_up_and_tried_again(mood_world):
    with serving(mood_world.judge("numbers"), hang_seconds=2.0) as server:
        judge = panel(server, timeout=0.4)
        judge.probe()
        server.faults.append("hang")
        assert judge.rate(requests(1))[0].status == "ok"


def test_a_bad_request_is_not_tried_again_and_spares_the_others(mood_world):
    with serving(mood_world.judge("numbers")) as server:
        judge = panel(server, concurrency=1)
        judge.probe()
        server.faults.append("status 400")
        before = server.requests
        found = judge.rate(requests(3))
        assert sorted(s.status for s in found) == ["error", "ok", "ok"]
        assert server.requests - before == 3


def test_an_item_that_keeps_failing_becomes_an_error_after_five_tries(mood_world):
    with serving(mood_world.judge("numbers")) as server:
        judge = panel(server)
        judge.probe()
        server.faults.extend(["status 500"] * 5)
        before = server.requests
        found = judge.rate(requests(1))[0]
        assert found.status == "error"
        assert "500" in found.error
        assert server.requests - before == 5


def test_ten_failures_in_a_row_open_the_circuit(mood_world):
    with serving(mood_world.judge("numbers")) as server:
        judge = panel(server, retries=1, concurrency=2)
        judge.probe()
        server.always = "status 500"
        with pytest.raises(Unavailable, match="10 calls in a row"):
            judge.rate(requests(40))
        assert server.requests < 20


def test_the_call_budget_stops_the_run_and_keeps_what_was_paid_for(mood_world, tmp_path):
    cache = tmp_path / "judge.sqlite"
    asked = requests(8)
    with serving(mood_world.judge("numbers")) as server:
        options = {**FAST, "base_url": server.url}
        judge = Panel.open("openai", JudgeOptions(**options, max_calls=6, concurrency=2), cache=cache)
        judge.probe()
        with pytest.raises(Unavailable, match="--max-judge-calls"):
            judge.rate(asked)
        assert server.requests == 6
        again = Panel.open("openai", JudgeOptions(**options), cache=cache)
        again.probe()
        assert all(s.status == "ok" for s in again.rate(asked))
        assert server.requests == 6 + 2 + 4  # the test of the judge, and what was missing


def test_the_same_question_is_asked_once(mood_world, tmp_path):
    with serving(mood_world.judge("numbers")) as server:
        judge = Panel.open("openai", JudgeOptions(**FAST, base_url=server.url), cache=tmp_path / "judge.sqlite")
        judge.probe()
        before = server.requests
        judge.rate(requests(3) * 4)
        judge.rate(requests(3))
        assert server.requests - before == 3


def test_two_hundred_calls_run_at_once_and_come_back_in_order(mood_world):
    with serving(mood_world.judge("numbers")) as server:
        judge = panel(server)
        judge.probe()
        texts = [TEXTS["good"] if i % 2 else TEXTS["bad"] for i in range(200)]
        found = judge.rate([build_request(CHEERFUL, f"{QUESTION} {i}", text) for i, text in enumerate(texts)])
    assert all((s.score > 50) == bool(i % 2) for i, s in enumerate(found))


def test_the_key_is_sent_and_shown_nowhere(mood_world, tmp_path):
    key = "sk-test-secret-0123456789abcdef"
    with serving(mood_world.judge("numbers")) as server:
        judge = Panel.open("openai", JudgeOptions(**FAST, base_url=server.url, log=tmp_path / "log.jsonl"), cache=tmp_path / "judge.sqlite")  # fmt: skip
        judge.probe()
        judge.rate(requests(2))
        assert server.seen[0]["authorization"] == f"Bearer {key}"
        server.always = "status 400"
        error = judge.rate([build_request(CHEERFUL, QUESTION, "other")])[0].error
    assert "fault 400" in error
    assert key not in error
    assert key not in str(judge.identity)
    assert all(key.encode() not in path.read_bytes() for path in tmp_path.iterdir())


@pytest.mark.parametrize("judge", ["openai", "openai-compatible", "gemini"])
def test_a_key_in_an_address_is_shown_nowhere(judge):
    address = "http://127.0.0.1:9/v1?api-version=2&key=ab12"
    asked = Panel.open(judge, JudgeOptions(model="m", base_url=address, retries=1, **FAST))
    assert asked.identity["base_url"] == "http://127.0.0.1:9/v1?api-version=2&key=***"
    with pytest.raises(Unavailable) as caught:
        asked.probe()
    assert "ab12" not in str(caught.value)


def test_an_error_that_repeats_an_address_does_not_repeat_its_key():
    said = without_key("no route to https://host/v1?token=ab12 for sk-own", "sk-own")
    assert said == "no route to https://host/v1?token=*** for ***"


def test_a_line_break_after_a_key_does_not_bring_it_into_messages(mood_world, monkeypatch):
    monkeypatch.setenv("GEMINI_API_KEY", "AIza-test-secret-0123456789\n")
    with serving(mood_world.judge("numbers")) as server:
        judge = panel(server, "gemini", base_url=server.url.removesuffix("/v1"), retries=1)
        judge.probe()
    assert judge.judge.key == "AIza-test-secret-0123456789"


def test_an_interrupt_does_not_turn_waiting_into_tries():
    options = JudgeOptions(backoff=30.0, concurrency=2)
    tries = []

    def refuse(request):
        tries.append(request)
        raise Refused("busy", retry=True)

    def call(request):
        return Reading("text", text="5") if request == asked[0] else refuse(request)

    def stop(*_):
        while not tries:
            time.sleep(0.01)
        raise KeyboardInterrupt

    asked = requests(2)
    with pytest.raises(KeyboardInterrupt):
        Caller(call, options).run(asked, stop)
    assert len(tries) == 1


def test_a_key_may_stand_in_dot_env(mood_world, monkeypatch, tmp_path):
    monkeypatch.delenv("OPENAI_API_KEY")
    with pytest.raises(UsageError, match="OPENAI_API_KEY"):
        Panel.open("openai", JudgeOptions())
    (tmp_path / ".env").write_text("# keys\nexport OPENAI_API_KEY='sk-from-file'\n")
    with serving(mood_world.judge("numbers")) as server:
        panel(server).probe()
        assert server.seen[0]["authorization"] == "Bearer sk-from-file"


def test_a_compatible_server_needs_an_address_and_a_model_but_no_key(mood_world, monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY")
    with pytest.raises(UsageError, match="--judge-base-url"):
        Panel.open("openai-compatible", JudgeOptions(model="m"))
    with pytest.raises(UsageError, match="--judge-model"):
        Panel.open("openai-compatible", JudgeOptions(base_url="http://127.0.0.1:9/v1"))
    with serving(mood_world.judge("numbers")) as server:
        judge = panel(server, "openai-compatible", model="local")
        judge.probe()
        assert judge.identity["provider"] == "openai-compatible"


def test_an_unknown_judge_is_refused_with_the_nearest():
    with pytest.raises(UnknownName, match="gemini"):
        Panel.open("gemeni", JudgeOptions())


# Through the official Gemini client


def gemini(server, **options):
    return panel(server, "gemini", base_url=server.url.removesuffix("/v1"), **options)


def test_the_gemini_client_reads_log_probabilities_where_they_are_granted(mood_world):
    with serving(mood_world.judge("numbers")) as server:
        judge = gemini(server)
        judge.probe()
        good, bad = judge.rate([build_request(CHEERFUL, QUESTION, TEXTS[name]) for name in ("good", "bad")])
    assert judge.identity["scoring"] == "single"
    assert good.score > 90
    assert bad.score < 10


def test_a_gemini_model_without_log_probabilities_says_so_and_works_as_text(mood_world):
    with serving(mood_world.judge("numbers")) as server:
        server.gemini_logprobs = False
        with pytest.raises(Unavailable, match="--judge-scoring text"):
            gemini(server).probe()
        judge = gemini(server, scoring="text")
        judge.probe()
        assert judge.rate([build_request(CHEERFUL, QUESTION, TEXTS["good"])])[0].score > 90


def test_gemini_faults_are_retried_once_each(mood_world):
    with serving(mood_world.judge("numbers")) as server:
        judge = gemini(server)
        judge.probe()
        before = server.requests
        server.faults.extend(["status 429 0.1", "status 503", "cut"])
        assert judge.rate(requests(1))[0].status == "ok"
        assert server.requests - before == 4
