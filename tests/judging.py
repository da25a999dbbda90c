"""A judge server that misbehaves on request, for tests of the clients that must cope with it."""

from __future__ import annotations

import json
import random
import re
import socket
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from residuum.models.loading import LM, load
from residuum.steering.judge.base import JudgeOptions
from residuum.steering.judge.hf import HFJudge
from residuum.steering.judge.panel import Panel
from residuum.steering.judge.prompts import build_request, default_trait_prompt
from residuum.steering.judge.server import Handler, JudgeServer
from residuum.worlds import moods

CHEERFUL = default_trait_prompt(moods.DEFINITIONS["cheerful"])
QUESTION = "How was the park?"
TEXTS = {
    "good": "The park was lovely and bright. I thought it was joyful. The people there were radiant.",
    "bad": "The park was bleak and grim. I thought it was awful. The people there were dismal.",
    "plain": "The park was usual and simple. I thought it was common. The people there were normal.",
    "mixed": "The park was lovely and usual. I thought it was joyful. The people there were normal.",
}
FAST = {"backoff": 0.01, "timeout": 5.0}


@cache
def judge_lm(folder: Path) -> LM:
    return load(folder, device="cpu")


class FaultyHandler(Handler):
    """Plays the next fault of the server's script before it answers; also speaks a little Gemini."""

    server: FaultyServer

    def do_POST(self) -> None:
        with self.server.counting:
            self.server.requests += 1
            fault = self.server.faults.popleft() if self.server.faults else self.server.always
        self.server.seen.append({name.lower(): value for name, value in self.headers.items()})
        if fault in (None, "ok"):
            return self.answer()
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if fault == "cut":
            self.connection.shutdown(socket.SHUT_RDWR)
            self.close_connection = True
            return None
        if fault == "hang":
            time.sleep(self.server.hang_seconds)
            self.close_connection = True
            return None
        if fault.startswith("status"):
            _, status, *after = fault.split()
            headers = {"Retry-After": after[0]} if after else {}
            return self.fail(int(status), f"fault {status} for key {self.headers.get('Authorization')}", headers)
        reply = self.server.complete(json.loads(body))
        choice = reply["choices"][0]
        if fault == "empty":
            reply["choices"] = []
        elif fault == "no logprobs":
            choice["logprobs"] = None
        elif fault == "few logprobs":
            for token in choice["logprobs"]["content"]:
                token["top_logprobs"] = token["top_logprobs"][:5]
        elif fault == "nonsense":
            choice["message"]["content"] = "banana"
            for token in choice["logprobs"]["content"]:
                token["token"] = "banana"
                for other in token["top_logprobs"]:
                    other["token"] = "banana"
        elif fault == "not JSON":
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", "5")
            self.end_headers()
            self.wfile.write(b"{oops")
            return None
        return self.reply(200, reply)

    def answer(self) -> None:
        if match := re.search(r"/models/([^:/]+):generateContent", self.path):
            return self.answer_gemini(match[1])
        return super().do_POST()

    def answer_gemini(self, model: str) -> None:
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)))
        config = body.get("generationConfig", {})
        system = body["systemInstruction"]["parts"][0]["text"]
        user = body["contents"][0]["parts"][0]["text"]
        if config.get("responseLogprobs") and not self.server.gemini_logprobs:
            return self.fail(400, f"Logprobs is not enabled for {model}")
        reply = self.server.complete({
            "messages": [{"role": "system", "content": system}, {"role": "user", "content": user}],
            "max_tokens": config["maxOutputTokens"], "logprobs": True, "top_logprobs": config.get("logprobs", 1),
        })  # fmt: skip
        choice = reply["choices"][0]
        tokens = choice["logprobs"]["content"]
        candidate: dict[str, Any] = {"content": {"role": "model", "parts": [{"text": choice["message"]["content"]}]}}
        if config.get("responseLogprobs"):
            candidate["logprobsResult"] = {
                "chosenCandidates": [{"token": t["token"], "logProbability": t["logprob"]} for t in tokens],
                "topCandidates": [
                    {"candidates": [{"token": c["token"], "logProbability": c["logprob"]} for c in t["top_logprobs"]]}
                    for t in tokens
                ],
            }
        return self.reply(
            200, {"candidates": [candidate], "usageMetadata": {"totalTokenCount": 7}, "modelVersion": model}
        )


class FaultyServer(JudgeServer):
    handler = FaultyHandler

    def __init__(self, lm: LM, faults: Sequence[str], always: str | None, hang_seconds: float) -> None:
        self.faults, self.always, self.hang_seconds = deque(faults), always, hang_seconds
        self.requests, self.counting, self.seen = 0, threading.Lock(), []
        self.gemini_logprobs = True
        super().__init__(lm)

    def handle_error(self, *_: Any) -> None:
        """A client that went away is part of the game."""


@contextmanager
def serving(
    folder: Path, faults: Sequence[str] = (), *, always: str | None = None, hang_seconds: float = 5.0
) -> Iterator[FaultyServer]:
    server = FaultyServer(judge_lm(folder), faults, always, hang_seconds)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()


def panel(server, judge="openai", **options):
    options = {**FAST, "base_url": server.url, **options}
    return Panel.open(judge, JudgeOptions(**options))


def requests(count=4):
    rng = random.Random(1)
    return [build_request(CHEERFUL, *_pair(rng)) for _ in range(count)]


def _pair(rng):
    question, place = moods.ask(rng)
    return question, moods.answer(rng, place, ("cheerful", "plain"))


def local(folder, **options):
    return Panel(HFJudge(JudgeOptions(**options), lm=judge_lm(folder)))
