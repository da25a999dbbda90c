"""What a model says to scenarios, before anything is read from it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from residuum.errors import UsageError
from residuum.generation import continue_prompts
from residuum.steering.activations import encode_prompt
from residuum.steering.traits import Scenario, Scenarios
from residuum.store.atomic import write_json
from residuum.store.hashing import content_hash

if TYPE_CHECKING:
    from residuum.models.loading import LM


@dataclass(frozen=True)
class Response:
    """What a model said to one scenario."""

    scenario: int
    rollout: int
    prompt: str
    system_prompt: str | None
    response: str
    ids: tuple[int, ...]
    """Prompt and response."""
    prompt_length: int


def respond(
    lm: LM,
    scenarios: Scenarios,
    *,
    length: int,
    rollouts: int,
    temperature: float,
    seed: int,
    chat: bool,
    system_prompt: str,
) -> tuple[list[Response], list[Response]]:
    """What the model says to every scenario of both sides.

    Args:
        lm: the model.
        scenarios: both sides.
        length: most tokens of a response; 0 when only prompts are read.
        rollouts: responses per scenario; one is enough when nothing is drawn.
        temperature: 0 is greedy.
        seed: of the sampling.
        chat: through the chat template.
        system_prompt: of the experiment; a scenario's own comes first.
    """
    rollouts = rollouts if temperature > 0 and length else 1
    work = [
        (side, number, rollout, scenario)
        for side, found in enumerate((scenarios.positive, scenarios.negative))
        for number, scenario in enumerate(found)
        for rollout in range(rollouts)
    ]
    prompts = [_encode(lm, scenario, chat, system_prompt) for *_, scenario in work]
    if length:
        seeds = [int(content_hash([seed, side, number, rollout])[:12], 16) for side, number, rollout, _ in work]
        said = continue_prompts(lm, prompts, max_new_tokens=length, temperature=temperature or None, seeds=seeds)
    sides: tuple[list[Response], list[Response]] = ([], [])
    for index, (side, number, rollout, scenario) in enumerate(work):
        new, text = (said[index].ids, said[index].text) if length else ((), "")
        sides[side].append(
            Response(number, rollout, scenario.prompt, scenario.system_prompt, text, (*prompts[index], *new), len(prompts[index]))
        )  # fmt: skip
    return sides


def _encode(lm: LM, scenario: Scenario, chat: bool, system_prompt: str) -> list[int]:
    system = system_prompt if scenario.system_prompt is None else scenario.system_prompt
    if not chat and system:
        raise UsageError(
            "a system prompt needs a chat template.\n  Use the chat template, or write the instruction into the scenario."
        )
    return encode_prompt(lm.tokenizer, scenario.prompt, chat=chat, system_prompt=system)


def write_responses(folder: Path, sides: Sequence[Sequence[Response]], about: Mapping[str, Any]) -> None:
    """Write ``pos.json``, ``neg.json`` and what is known of both."""
    for name, responses in zip(("pos", "neg"), sides, strict=True):
        write_json(folder / f"{name}.json", [
            {"prompt": r.prompt, "response": r.response, "system_prompt": r.system_prompt, "scenario_idx": r.scenario,
             "rollout_idx": r.rollout, "prompt_token_count": r.prompt_length} for r in responses
        ])  # fmt: skip
    write_json(folder / "metadata.json", {**about, "timestamp": datetime.now(UTC).isoformat(timespec="seconds")})
