"""RTT from start to end: data, plan, work, result files, findings.

result = residuum.run_rtt(dataset="birthdays", ft={"num_splits": 3})
result.findings[0].summary.recovery_rate
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from residuum.errors import InputError, PartlyFailed, ResiduumError, UsageError
from residuum.folders import runs_folder
from residuum.processes import worker_pool
from residuum.rtt.config import RttConfig, read_config
from residuum.rtt.facts import Facts, McqFacts, load_mcq_facts
from residuum.rtt.overlap import overlap_warnings
from residuum.rtt.plan import Plan, make_plan
from residuum.rtt.results import Finding, Results
from residuum.rtt.settings import merge, read_toml
from residuum.rtt.views import write_files
from residuum.store import Store

if TYPE_CHECKING:
    from residuum.worlds.people import Birthdays

BIRTHDAYS = "birthdays"


class RttWarning(UserWarning):
    """The numbers should not be taken at their word."""


@dataclass(frozen=True)
class RttResult:
    """What a sweep found."""

    plan: Plan = field(repr=False)
    findings: Sequence[Finding]
    """One per unlearned model."""
    files: Sequence[Path]
    """The summary file and its picture."""
    failures: Mapping[str, str]
    """What went wrong, by piece of work."""
    controls: Finding | None = None
    """C and N alone, when there is no unlearned model."""

    @property
    def all_findings(self) -> list[Finding]:
        """The findings, or the controls alone."""
        return [*self.findings, *([] if self.controls is None else [self.controls])]


def run_rtt(
    config: str | Path | Mapping[str, Any] | None = None, *, runs: str | Path | None = None, **settings: Any
) -> RttResult:
    """Does it come back after retraining on related facts? A, B, C and N over a grid of learning rates and epochs.

    Args:
        config: a TOML file or nested settings; keyword arguments win over it.
        runs: root of the run store.
        **settings: fields of `residuum.rtt.config.RttConfig`; ``ft`` and ``unlearn`` are mappings.

    Raises:
        InputError: settings, data or checkpoints that cannot be used.
    """
    plan = plan_rtt(config, **settings)
    return execute(plan, Store(runs or runs_folder()))


def plan_rtt(config: str | Path | Mapping[str, Any] | None = None, *, draft: bool = False, **settings: Any) -> Plan:
    """The plan of a sweep; builds the embedded world when it is asked for, loads nothing else.

    Args:
        config: see `run_rtt`.
        draft: only to be looked at: an embedded world that is not there yet is not built, and names are preliminary.
        **settings: see `run_rtt`.
    """
    lower = read_toml(config) if isinstance(config, str | Path) else dict(config or {})
    settings = merge(lower, settings)
    read_config(settings)  # a misspelled key shows before a world is built
    whole = read_config(_embedded(settings, draft=draft))
    if settings.get("conditions") is not None and "N" in whole.conditions and whole.naive_model is None:
        raise UsageError("N was asked for, and there is no model that never saw the facts: give --naive-model.")
    facts = load_facts(whole)
    for name in _IGNORED[isinstance(facts, McqFacts)]:
        if settings.get(name) is not None:
            kind = "multiple choices" if isinstance(facts, McqFacts) else "free answers"
            raise UsageError(f"{name} has no meaning here: {facts.name} has {kind}.\n  Leave it out.")
    return _plan(whole, facts)


_IGNORED = {
    True: ("num_total_splits", "rows_per_author", "prompt_format", "right"),
    False: ("label_variant", "k_shot", "max_seq_len", "forget_files", "retain_files", "val_retain_files"),
}
"""Settings that say nothing about facts with choices, and about those without."""


def execute(plan: Plan, store: Store) -> RttResult:
    """Do what is left of a plan, with one process per device, and write the result files."""
    overlaps = overlap_warnings({split.name: plan.facts.texts(split) for split in plan.facts.splits})
    for sentence in (*overlaps, *plan.cautions()):
        warnings.warn(sentence, RttWarning, stacklevel=2)
    failures = _work(plan, store)
    results = Results(plan, store)
    findings = results.findings()
    files = write_files(results, findings)
    for finding in findings:
        for sentence in finding.warnings:
            warnings.warn(f"{finding.start.label}: {sentence}", RttWarning, stacklevel=2)
    if failures:
        _log_failures(plan.config.results_dir, failures)
    return RttResult(plan, findings, files, failures, None if findings else results.controls())


def check_failures(result: RttResult) -> None:
    """Raise when work failed.

    Raises:
        PartlyFailed: some of A, B, C and N has a number; names the first failure.
        ResiduumError: none has.
    """
    if not result.failures:
        return
    name, reason = next(iter(result.failures.items()))
    found = any(finding.summary.has_numbers for finding in result.all_findings)
    raise (PartlyFailed if found else ResiduumError)(
        f"{len(result.failures)} pieces of work failed, {'everything else is done' if found else 'nothing was found'};"
        f" first {name}: {reason}\n  All of them are in {result.plan.config.results_dir / ERROR_LOG}."
    )


ERROR_LOG = "pipeline_error.log"


def load_facts(config: RttConfig) -> Facts:
    """The facts that a dataset's name or folder means."""
    from residuum.rtt.questions import FORGET_SPLITS, load_qa_facts

    folder = Path(config.dataset)
    perturbed = [folder / name for name in ("", "data")]
    if (
        config.dataset == "tofu"
        or config.split is not None
        or any((p / f"{s}.jsonl").exists() for p in perturbed for s in FORGET_SPLITS)
    ):
        return load_qa_facts(
            config.dataset, split=config.split, num_total_splits=config.num_total_splits,
            rows_per_author=config.rows_per_author, prompt_format=config.prompt_format, right=config.right,
        )  # fmt: skip
    return load_mcq_facts(
        folder, forget_files=config.forget_files, val_retain_files=config.val_retain_files,
        label_variant=config.label_variant, k_shot=config.k_shot, max_seq_len=config.max_seq_len, compat=config.compat,
    )  # fmt: skip


def _embedded(settings: Mapping[str, Any], *, draft: bool) -> dict[str, Any]:
    """``birthdays`` as the folder, the models and the settings of the embedded world; what was given wins."""
    if settings.get("dataset", BIRTHDAYS) != BIRTHDAYS or Path(BIRTHDAYS).is_dir():
        return dict(settings)
    from residuum.worlds.people import SETTINGS, build_birthdays, draft_birthdays

    seed = int(settings.get("data_seed", 0))
    world = draft_birthdays(seed=seed) if draft else build_birthdays(seed=seed)
    given = settings.get("unlearn") or {}
    # What is given for all methods also wins over what the world has for one of them.
    unlearn = {
        name: {key: kept for key, kept in value.items() if key not in given} if isinstance(value, Mapping) else value
        for name, value in SETTINGS["unlearn"].items()
    }
    if settings.get("unlearned") and "types" not in given:
        unlearn["types"] = []  # models were brought: none need be made
    own = {
        **_stand_ins(world, seed), "data_seed": 0,
        "ft": SETTINGS["ft"], "unlearn": unlearn,
    }  # fmt: skip
    return {**merge(own, settings), "dataset": str(world.data)}


def _stand_ins(world: Birthdays, seed: int) -> dict[str, Any]:
    """The models of a world; in a draft of one, untrained ones of their size."""
    if world.is_built:
        return {"model": str(world.model("base")), "naive_model": str(world.model("naive"))}
    from residuum.models.loading import LM
    from residuum.worlds.birthdays import word_tokenizer
    from residuum.worlds.people import RECIPES, new_model

    warnings.warn(
        "the birthdays world is not there yet; the run builds it first, in some minutes. Until then names of runs are"
        " preliminary.", RttWarning, stacklevel=2,
    )  # fmt: skip
    tokenizer = word_tokenizer()
    model = new_model(RECIPES[BIRTHDAYS], tokenizer, seed)
    return {
        key: LM.from_model(model, tokenizer, name=stage) for key, stage in (("model", "base"), ("naive_model", "naive"))
    }


def _plan(config: RttConfig, facts: Facts) -> Plan:
    if not config.unlearn and not config.unlearned and {"A", "B"} & set(config.conditions):
        raise UsageError(
            "there is no unlearned model: give --unlearn-types to make some, or --unlearned with checkpoints.\n"
            "  With --conditions C,N only the controls are run."
        )
    return make_plan(config, facts)


def _work(plan: Plan, store: Store) -> dict[str, str]:
    from residuum.rtt.engine import Engine

    engine = Engine(plan, store)
    _check_base(engine, plan, store)
    devices = plan.config.devices
    if len(devices) == 1:
        engine.work()
        return engine.failures
    if any(not isinstance(model, str | Path) for model in _models(plan.config)):
        raise UsageError("several devices need models on disk: give names or folders instead of loaded models.")
    with worker_pool(len(devices) - 1) as pool:
        others = [
            pool.submit(work_alone, replace(plan.config, devices=(device,)), store.root) for device in devices[1:]
        ]
        engine.work()
        for other in others:
            other.result()
    return engine.failures


def work_alone(config: RttConfig, root: Path) -> None:
    """What a process of its own does for a sweep: its share of the work, without views."""
    from residuum.rtt.engine import Engine

    Engine(_plan(config, load_facts(config)), Store(root)).work(title=None)


def _check_base(engine: Any, plan: Plan, store: Store) -> None:
    """The model must know the facts before it can be made to forget them."""
    least = plan.config.baseline_min_forget_acc
    if not least:
        return
    engine.evaluate(plan.base)
    found = Results(plan, store).base_all()
    if found is not None and found < least:
        raise InputError(
            f"{plan.base.label} has an accuracy of {found:.3f} on {plan.facts.name}, below {least:g}: there is nothing to"
            " unlearn.\n  Set baseline_min_forget_acc to 0 to go on anyway."
        )


def _models(config: RttConfig) -> list[Any]:
    return [model for model in (config.model, config.naive_model, *config.unlearned) if model is not None]


def _log_failures(folder: Path, failures: Mapping[str, str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ERROR_LOG).open("a", encoding="utf-8") as log:
        for name, reason in failures.items():
            log.write(f"{name}: {reason}\n")
