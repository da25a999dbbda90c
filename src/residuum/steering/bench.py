"""Where settings are tried: many at once in one batch of generations, judged together, each saved by itself.

A setting that is finished is read; one that another process is at is waited for. A batch can be cut anywhere, by memory or
by a kill: what is saved is whole, and what is not is done again.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any

from residuum.progress import progress
from residuum.steering.results import Results
from residuum.steering.settings import Generation, Setting, context_id, make_context, run_task
from residuum.steering.summary import status_of, summarize
from residuum.store import Busy, Task, Unit, claim
from residuum.store.hashing import content_hash
from residuum.store.origin import provenance

if TYPE_CHECKING:
    from residuum.models.handles import ModelHandle
    from residuum.steering.judge.panel import Panel
    from residuum.steering.traits import PromptSet, Question

Item = dict[str, Any]


@dataclass(frozen=True)
class Bench:
    """One context: a model, some questions, a way to generate, a judge."""

    results: Results
    handle: ModelHandle
    prompts: PromptSet
    questions: tuple[Question, ...]
    generation: Generation
    panel: Panel
    coherence_prompt: str
    norms: Mapping[int, float] = field(default_factory=dict)
    """Mean activation length by layer, for relative coefficients."""
    vector_source: str | None = None
    """Where the vectors come from, when it is another experiment or trait."""
    split: str | None = None
    """search or report, when questions are held out."""
    together: int | None = None
    """Most settings in one batch; None: all."""
    force: bool = False
    """Make finished runs again."""
    keep_previous: bool = False
    """Keep what a forced run replaces beside it, as ``.json.prev``."""

    @cached_property
    def context(self) -> dict[str, Any]:
        """What all runs here share; the judge must have been tested."""
        return make_context(
            self.handle, self.prompts, self.questions, self.generation, self.panel.identity, self.coherence_prompt
        )

    @property
    def context_id(self) -> str:
        """Its name."""
        return context_id(self.context)

    def task(self, setting: Setting | None) -> Task:
        """The task of a setting, or of the baseline."""
        return run_task(self.results.place, self.context, setting)

    def find(self, setting: Setting | None) -> Unit | None:
        """The finished run of a setting, whatever came of it."""
        return self.results.store.get(self.task(setting))

    def baseline(self) -> Unit:
        """The unsteered answers of this context, made when they are missing."""
        return self.run([None], force=False)[0]

    def run(
        self,
        settings: Sequence[Setting | None],
        *,
        notes: Sequence[Mapping[str, Any]] | None = None,
        force: bool | None = None,
    ) -> list[Unit]:
        """The runs of some settings, in their order.

        Args:
            settings: what to try; None is the baseline.
            notes: more fields for the saved run of each, such as ``search``.
            force: make them again; the bench's own choice when left out.
        """
        again = self.force if force is None else force
        # A forced setting is made again once, not once per loop.
        stale = {self.task(setting).key for setting in settings} if again else set()
        work = {self.task(s).key: (s, dict(notes[i]) if notes else {}) for i, s in enumerate(settings)}
        units: dict[str, Unit] = {}

        def take(keys: Iterable[str]) -> list[str]:
            """Read what is finished; returns what is not."""
            for key in (open_ := [key for key in keys if key not in units]):
                found = None if key in stale else self.find(work[key][0])
                if found is not None and found.value["status"] == "ok":
                    units[key] = self._annotated(found, work[key][1])
            return [key for key in open_ if key not in units]

        while missing := take(work):
            with self._claimed(missing) as mine:
                # Its last holder may have finished it while we waited.
                for group in _groups(take(mine), self.together):
                    made = self._make([work[key][0] for key in group], [work[key][1] for key in group], stale)
                    units.update(zip(group, made, strict=True))
                    stale -= set(group)
        return [units[self.task(setting).key] for setting in settings]

    def _make(
        self, settings: Sequence[Setting | None], notes: Sequence[Mapping[str, Any]], stale: set[str]
    ) -> list[Unit]:
        """Generate, judge, save; answers that are there and only lack a judgement are not written again."""
        earlier = {i: self.find(setting) for i, setting in enumerate(settings)}
        kept = {
            i: [dict(item) for item in unit.value["items"]]
            for i, unit in earlier.items()
            if unit is not None and self.task(settings[i]).key not in stale
        }
        fresh = [i for i in range(len(settings)) if i not in kept]
        written = self._write([settings[i] for i in fresh]) if fresh else []
        answers = {**kept, **dict(zip(fresh, written, strict=True))}
        units = []
        judged = False
        try:
            self._judge([item for i in range(len(settings)) for item in answers[i]])
            judged = True
        finally:
            # Also when the judge is gone or the user has had enough: a later run only has to judge what is written.
            for i, setting in enumerate(settings):
                before = earlier[i]
                if not judged and before is not None and before.value["status"] == "ok":
                    continue  # a forced run without a judgement is no reason to lose a finished one
                value = self._value(setting, answers[i], notes[i], None if before is None else before.value["created"])
                if self.keep_previous and i in fresh and before is not None:
                    path = self.results.store.path(before.task)
                    shutil.copy2(path, path.with_name(f"{path.name}.prev"))
                units.append(self._save(setting, value))
        return units

    def _write(self, settings: Sequence[Setting | None]) -> list[list[Item]]:
        """The answers of all questions under each setting, all in one batch of rows."""
        from residuum.generation import continue_prompts
        from residuum.steering.activations import encode_questions
        from residuum.steering.intervene import steered

        lm, how = self.handle.lm, self.generation
        prompts = encode_questions(lm.tokenizer, self.questions, chat=how.chat, system_prompt=how.system_prompt)
        rows = [
            (setting, q, rollout)
            for setting in settings
            for q in range(len(prompts))
            for rollout in range(how.effective_rollouts)
        ]
        edits = {id(setting): [] if setting is None else setting.edits() for setting in settings}
        modes = {setting.mode for setting in settings if setting is not None} or {"all"}
        (mode,) = modes  # one command steers one kind of tokens
        said = continue_prompts(
            lm,
            [prompts[q] for _, q, _ in rows],
            max_new_tokens=how.max_new_tokens,
            temperature=how.temperature or None,
            seeds=[_seed(how.seed, self.questions[q].id, rollout) for _, q, rollout in rows],
            around=steered(lm, [edits[id(setting)] for setting, _, _ in rows], mode=mode),
        )
        items = [
            {
                "question_id": self.questions[q].id,
                "question": self.questions[q].text,
                "rollout": rollout,
                "response": text.text,
                "finish_reason": "stop" if text.finished else "length",
                "n_tokens": len(text.ids),
            }
            for (_, q, rollout), text in zip(rows, said, strict=True)
        ]
        size = len(prompts) * how.effective_rollouts
        return [items[start : start + size] for start in range(0, len(items), size)]

    def _judge(self, items: Sequence[Item]) -> None:
        """Both scores of every answer, asked together."""
        templates = {"trait": self.prompts.eval_prompt, "coherence": self.coherence_prompt}
        for item in items:
            for kind in templates:
                item.setdefault(kind, {"score": None, "mass": 0.0, "refusal_prob": 0.0, "status": "not judged"})
        open_ = [(i, kind) for i, item in enumerate(items) for kind in templates if item[kind]["score"] is None]
        requests = [
            self.panel.request(templates[kind], items[i]["question"], self.generation.judged(items[i]["response"]))
            for i, kind in open_
        ]
        with progress("judging", len(set(requests))) as bar:
            scores = self.panel.rate(requests, advance=bar.advance)
        for (i, kind), score in zip(open_, scores, strict=True):
            items[i][kind] = score.to_json()

    def _value(
        self, setting: Setting | None, items: Sequence[Item], note: Mapping[str, Any], created: str | None
    ) -> dict[str, Any]:
        now = datetime.now(UTC).isoformat(timespec="microseconds")
        relative = None
        if setting is not None:
            pairs = zip(setting.vectors, setting.coefficients, strict=True)
            known = [(v, c, self.norms.get(v.layer)) for v, c in pairs]
            relative = [None if not norm else c * v.norm / norm for v, c, norm in known]
        return {
            "result": summarize(items),
            "status": status_of(items),
            "items": list(items),
            "relative_coefficients": relative,
            "vector_source": self.vector_source,
            "split": self.split,
            "prompts_file": str(self.prompts.path),
            "timestamp": now,
            "created": created or now,
            **note,
        }

    def _save(self, setting: Setting | None, value: Mapping[str, Any]) -> Unit:
        origin = provenance(
            seed=self.generation.seed, weights=self.handle.weights_hash, data=self.prompts.hash,
            judge=self.panel.identity, model=self.handle.source,
        )  # fmt: skip
        unit = self.results.store.put(self.task(setting), value, provenance=origin)
        self.results.add(unit, prompts=self.prompts)
        return unit

    def _annotated(self, unit: Unit, note: Mapping[str, Any]) -> Unit:
        """A finished run that turns up again in another role, for instance as the best of a search, keeps its numbers."""
        if all(unit.value.get(key) == value for key, value in note.items()):
            return unit
        value = {**unit.value, **note}
        changed = self.results.store.put(unit.task, value, provenance=unit.provenance)
        self.results.add(changed, prompts=self.prompts)
        return changed

    @contextmanager
    def _claimed(self, keys: Sequence[str]) -> Iterator[list[str]]:
        """Hold as many runs as nobody else holds; at least one, for which we wait if we must."""
        claims = self.results.store.root / "claims"
        with ExitStack() as stack:
            mine: list[str] = []
            for number, key in enumerate(keys):
                # The last chance to get any: wait until its holder has finished or died.
                wait = None if not mine and number == len(keys) - 1 else 0
                with suppress(Busy):
                    stack.enter_context(claim(claims / f"steering-{key}", f"steering run {key[:16]}", timeout=wait))
                    mine.append(key)
            yield mine
            for key in mine:
                (claims / f"steering-{key}.lock").unlink(missing_ok=True)


def _groups(keys: Sequence[str], size: int | None) -> list[list[str]]:
    size = size or max(1, len(keys))
    return [list(keys[start : start + size]) for start in range(0, len(keys), size)]


def _seed(seed: int, question: str, rollout: int) -> int:
    return int(content_hash([seed, question, rollout])[:12], 16)
