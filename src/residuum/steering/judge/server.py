"""A small judge server: the OpenAI chat protocol with ``top_logprobs`` over a local model, nothing but the standard library.

For users without an API, and for tests of everything that talks to one.

    POST /v1/chat/completions   messages, max_tokens, logprobs, top_logprobs (up to 20); always greedy
    GET  /v1/models             the one model there is
"""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

from residuum.errors import UsageError
from residuum.steering.judge.local import LocalModel
from residuum.steering.judge.probing import TOP

if TYPE_CHECKING:
    from residuum.models.loading import LM

MOST_TOKENS = 256
LARGEST_BODY = 4 << 20


class BadRequest(Exception):
    """What was asked for cannot be given; becomes HTTP 400."""


class JudgeServer(ThreadingHTTPServer):
    """Serves one model; requests are read at once and answered one after the other.

    Args:
        lm: the model.
        host: address to listen on; loopback unless asked otherwise.
        port: 0 takes a free one.
    """

    # A thread that is cut off inside torch while the interpreter ends takes the whole process down with an abort.
    daemon_threads = False
    handler: type[BaseHTTPRequestHandler] = BaseHTTPRequestHandler
    """Speaks HTTP; set below, where it is defined."""

    def __init__(self, lm: LM, *, host: str = "127.0.0.1", port: int = 0) -> None:
        self.lm, self.model, self.alone = lm, LocalModel(lm), threading.Lock()
        self._open: set[Any] = set()
        try:
            super().__init__((host, port), self.handler)
        except OSError as error:
            raise UsageError(
                f"cannot listen on {host}:{port}: {error.strerror}.\n  Choose another --port; 0 takes a free one."
            ) from error

    @property
    def url(self) -> str:
        """The base_url for clients."""
        return f"http://{self.server_address[0]!s}:{self.server_address[1]}/v1"

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer a connection in a thread of its own."""
        self._open.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """Let go of a connection."""
        self._open.discard(request)
        super().shutdown_request(request)

    def server_close(self) -> None:
        """Stop listening; what was asked is still answered, clients that only keep their connection are not waited for."""
        for request in list(self._open):
            with suppress(OSError):
                request.shutdown(socket.SHUT_RD)
        super().server_close()

    def complete(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """One chat completion.

        Raises:
            BadRequest: the body makes no sense.
        """
        messages = body.get("messages")
        if not isinstance(messages, list) or not messages or not all(_is_message(m) for m in messages):
            raise BadRequest("messages must be a list of objects with role and content")
        wanted = body.get("max_completion_tokens") or body.get("max_tokens") or 16
        top = body.get("top_logprobs") or 0
        if not isinstance(wanted, int) or not 1 <= wanted <= MOST_TOKENS:
            raise BadRequest(f"max_tokens must be between 1 and {MOST_TOKENS}")
        if not isinstance(top, int) or not 0 <= top <= TOP:
            raise BadRequest(f"top_logprobs must be between 0 and {TOP}")
        with self.alone:
            prompt = self.model.encode(messages)
            tokens, stopped = self._generate(prompt, wanted, top)
        return {
            "id": f"chatcmpl-{time.time_ns():x}", "object": "chat.completion", "created": int(time.time()),
            "model": self.lm.name,
            "choices": [{
                "index": 0, "finish_reason": "stop" if stopped else "length",
                "message": {"role": "assistant", "content": "".join(token["token"] for token in tokens).strip()},
                "logprobs": {"content": tokens} if body.get("logprobs") else None,
            }],
            "usage": {
                "prompt_tokens": len(prompt), "completion_tokens": len(tokens), "total_tokens": len(prompt) + len(tokens),
            },
        }  # fmt: skip

    def _generate(self, prompt: list[int], wanted: int, top: int) -> tuple[list[dict[str, Any]], bool]:
        tokens: list[dict[str, Any]] = []
        front = self.model.start([prompt])
        while True:
            chosen = int(front.log_probs[0].argmax())
            if tokens and chosen == self.lm.tokenizer.eos_token_id:
                return tokens, True
            likeliest = front.log_probs[0].topk(min(max(top, 1), front.log_probs.shape[1]))
            pairs = zip(likeliest.indices.tolist(), likeliest.values.tolist(), strict=True)
            listed = [self._token(index, value) for index, value in pairs][:top]
            tokens.append(self._token(chosen, float(front.log_probs[0, chosen])) | {"top_logprobs": listed})
            if len(tokens) == wanted:
                return tokens, False
            front = self.model.extend(front, [0], [chosen])

    def _token(self, index: int, log_prob: float) -> dict[str, Any]:
        text = self.lm.tokenizer.decode([index])
        return {"token": text, "logprob": log_prob, "bytes": list(text.encode())}


def _is_message(value: Any) -> bool:
    return isinstance(value, dict) and isinstance(value.get("content"), str) and isinstance(value.get("role"), str)


class Handler(BaseHTTPRequestHandler):
    """Speaks HTTP for a `JudgeServer`."""

    server: JudgeServer
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        """List the model."""
        if self.path.rstrip("/") == "/v1/models":
            model = {"id": self.server.lm.name, "object": "model", "created": 0, "owned_by": "residuum"}
            self.reply(200, {"object": "list", "data": [model]})
        else:
            self.fail(404, f"there is no {self.path}")

    def do_POST(self) -> None:
        """Complete a chat."""
        length = int(self.headers.get("Content-Length") or 0)
        if length > LARGEST_BODY:
            self.close_connection = True
            return self.fail(413, "the request is too large")
        body = self.rfile.read(length)
        if self.path.rstrip("/") != "/v1/chat/completions":
            return self.fail(404, f"there is no {self.path}")
        try:
            fields = json.loads(body)
            if not isinstance(fields, dict):
                raise BadRequest("the body must be an object")
            return self.reply(200, self.server.complete(fields))
        except (BadRequest, ValueError) as error:
            return self.fail(400, str(error))
        except Exception as error:  # a model that fails is the server's fault, not the end of the server
            return self.fail(500, f"{type(error).__name__}: {error}")

    def fail(self, status: int, message: str, headers: Mapping[str, str] | None = None) -> None:
        """An error as clients of the protocol expect it."""
        self.reply(status, {"error": {"message": message, "type": "invalid_request_error", "code": status}}, headers)

    def reply(self, status: int, content: Mapping[str, Any], headers: Mapping[str, str] | None = None) -> None:
        """A JSON reply."""
        body = json.dumps(content).encode()
        self.send_response(status)
        for name, value in {
            "Content-Type": "application/json",
            "Content-Length": str(len(body)),
            **(headers or {}),
        }.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Silent: a thousand ratings would be a thousand lines."""


JudgeServer.handler = Handler
