"""Judges behind the OpenAI protocol: OpenAI itself, and any server that speaks it (vLLM, llama.cpp, Ollama, ours)."""

from __future__ import annotations

import os
from functools import cached_property
from typing import TYPE_CHECKING, Any

from residuum.errors import MissingExtra, UsageError
from residuum.steering.judge.base import JUDGES, JudgeOptions, Provider
from residuum.steering.judge.calls import Refused, refusal_of_status
from residuum.steering.judge.keys import find_key, without_key
from residuum.steering.judge.probing import TOP, Places
from residuum.steering.judge.prompts import Request
from residuum.steering.judge.remote import SEED, RemoteJudge, chosen_first

if TYPE_CHECKING:
    from openai import OpenAI

DEFAULT_MODEL = "gpt-4.1-mini"


class OpenAIJudge(RemoteJudge):
    """A judge through the official client.

    Args:
        options: model, address and limits.
        compatible: a server of another maker: it needs an address, may lack a key, and has no default model.
    """

    def __init__(self, options: JudgeOptions, *, compatible: bool = False) -> None:
        self.key = find_key("OPENAI_API_KEY", required=not compatible)
        base_url = options.base_url or os.environ.get("OPENAI_BASE_URL") or None
        if compatible and not base_url:
            raise UsageError("an openai-compatible judge needs --judge-base-url (or OPENAI_BASE_URL).")
        if compatible and not options.model:
            raise UsageError("an openai-compatible judge needs --judge-model, as the server calls it.")
        provider = "openai-compatible" if compatible else "openai"
        super().__init__(provider, options.model or DEFAULT_MODEL, base_url, options)

    @cached_property
    def client(self) -> OpenAI:
        """The official client; its own retries are off, so that ours are the only ones."""
        try:
            from openai import OpenAI
        except ImportError:
            raise MissingExtra("openai", "judge", "the OpenAI judge") from None
        return OpenAI(api_key=self.key or "none", base_url=self.base_url, timeout=self.options.timeout, max_retries=0)

    def ask(self, request: Request, count: int) -> tuple[str, Places]:
        """One chat completion."""
        client = self.client
        import openai

        call: dict[str, Any] = {
            "model": self.model, "messages": request.messages, "max_tokens": count, "temperature": 0, "seed": SEED,
        }  # fmt: skip
        if self.scoring != "text":
            call |= {"logprobs": True, "top_logprobs": TOP}
        try:
            return self._parse(client.chat.completions.create(**call))
        except openai.APIStatusError as error:
            message = without_key(str(error.message), self.key)
            raise refusal_of_status(error.status_code, message, error.response.headers.get("retry-after")) from None
        except (openai.APIConnectionError, openai.APIResponseValidationError) as error:
            raise Refused(without_key(f"no connection: {error}", self.key), retry=True) from None
        except openai.OpenAIError as error:
            raise Refused(without_key(str(error), self.key), fatal=True) from None
        except (ValueError, TypeError, AttributeError) as error:
            raise Refused(f"the reply is no chat completion: {error}", retry=True) from None

    def _parse(self, reply: Any) -> tuple[str, Places]:
        """The reply and its tokens; whatever a server leaves out is empty."""
        self.caller.usage.tokens += getattr(reply.usage, "total_tokens", 0) or 0
        if not reply.choices:
            raise Refused("the reply is empty", retry=True)
        choice = reply.choices[0]
        content = getattr(choice.logprobs, "content", None) or []
        places = [chosen_first([(t.token, t.logprob) for t in c.top_logprobs or []], c.token) for c in content]
        return choice.message.content or "", places


JUDGES.register("openai")(
    Provider(OpenAIJudge, "OpenAI's models by log-probabilities", DEFAULT_MODEL, "OPENAI_API_KEY")
)
JUDGES.register("openai-compatible")(
    Provider(
        lambda options: OpenAIJudge(options, compatible=True),
        "any server with the OpenAI protocol: vLLM, llama.cpp, Ollama, residuum steer serve-judge",
        None,
        "OPENAI_API_KEY (if the server asks for one)",
    )
)
