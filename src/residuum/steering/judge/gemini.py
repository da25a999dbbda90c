"""Google's Gemini as a judge: by log-probabilities where the model grants them, as text where asked for."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

from residuum.errors import MissingExtra
from residuum.steering.judge.base import JUDGES, JudgeOptions, Provider
from residuum.steering.judge.calls import Refused, refusal_of_status
from residuum.steering.judge.keys import find_key, without_key
from residuum.steering.judge.probing import TOP, Places
from residuum.steering.judge.prompts import Request
from residuum.steering.judge.remote import SEED, RemoteJudge, chosen_first

if TYPE_CHECKING:
    from google.genai import Client

DEFAULT_MODEL = "gemini-2.5-flash"


class GeminiJudge(RemoteJudge):
    """A judge through google-genai, with thinking off.

    Args:
        options: model, address (of a gateway) and limits.
    """

    def __init__(self, options: JudgeOptions) -> None:
        self.key = find_key("GEMINI_API_KEY")
        super().__init__("gemini", options.model or DEFAULT_MODEL, options.base_url, options)

    @cached_property
    def client(self) -> Client:
        """The official client."""
        try:
            from google.genai import Client, types
        except ImportError:
            raise MissingExtra("google-genai", "judge", "the Gemini judge") from None
        # One try each: ours are the only retries.
        http = types.HttpOptions(
            base_url=self.base_url,
            timeout=int(self.options.timeout * 1000),
            retry_options=types.HttpRetryOptions(attempts=1),
        )
        return Client(api_key=self.key, http_options=http)

    def ask(self, request: Request, count: int) -> tuple[str, Places]:
        """One generation."""
        client = self.client
        from google.genai import errors, types

        settings: dict[str, Any] = {"max_output_tokens": count, "temperature": 0, "seed": SEED}
        if self.scoring != "text":
            settings |= {"response_logprobs": True, "logprobs": TOP}
        config = types.GenerateContentConfig(
            system_instruction=request.system, thinking_config=types.ThinkingConfig(thinking_budget=0), **settings
        )
        try:
            return self._parse(client.models.generate_content(model=self.model, contents=request.user, config=config))
        except Refused:
            raise
        except errors.APIError as error:
            headers = getattr(error.response, "headers", None) or {}
            message = without_key(str(error.message), self.key)
            raise refusal_of_status(error.code, message, headers.get("retry-after")) from None
        except Exception as error:  # the client lets through what its transport raises, and that differs by version
            reason = str(error) or type(error).__name__
            raise Refused(without_key(f"no connection: {reason}", self.key), retry=True) from None

    def _parse(self, reply: Any) -> tuple[str, Places]:
        """The reply and its tokens; whatever is left out is empty."""
        self.caller.usage.tokens += getattr(reply.usage_metadata, "total_token_count", None) or 0
        if not reply.candidates:
            raise Refused("the reply is empty")  # filtered: the same text would be filtered again
        candidate = reply.candidates[0]
        text = "".join(part.text or "" for part in getattr(candidate.content, "parts", None) or [])
        result = candidate.logprobs_result
        chosen = [c.token for c in getattr(result, "chosen_candidates", None) or []]
        tops = [top.candidates or [] for top in getattr(result, "top_candidates", None) or []]
        return text, [
            chosen_first([(c.token, c.log_probability) for c in top], chosen[i] if i < len(chosen) else None)
            for i, top in enumerate(tops)
        ]


JUDGES.register("gemini")(Provider(GeminiJudge, "Google's Gemini models", DEFAULT_MODEL, "GEMINI_API_KEY"))
