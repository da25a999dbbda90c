"""What an evaluation will do, found out from files alone: layers, vectors, questions, and everything that is wrong with them."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from residuum.errors import DataError, ModelError, UsageError
from residuum.steering.config import DEFAULT_COEFFICIENT, EvaluateConfig
from residuum.steering.experiments import Experiment, folder_name, split_source
from residuum.steering.judge.prompts import COHERENCE, default_trait_prompt
from residuum.steering.layers import select_layers
from residuum.steering.settings import Setting, significant
from residuum.steering.traits import (
    PromptSet,
    Question,
    SteeringWarning,
    find_prompts,
    load_definition,
    load_prompts,
    load_scenarios,
    warn_of_overlap,
)
from residuum.steering.vectors import Vector, VectorSet, find_vectors, incremental

if TYPE_CHECKING:
    from residuum.models.handles import ModelHandle


@dataclass(frozen=True)
class Plan:
    """Everything that is known before a judge or a model is touched."""

    experiment: Experiment
    trait: str
    source: str
    """Where the vectors come from, ``experiment/category/trait``."""
    config: EvaluateConfig
    prompts: PromptSet
    coherence_prompt: str
    questions: tuple[Question, ...]
    """Those that settings are tried on."""
    reported: tuple[Question, ...]
    """Those that the result is reported on; the same without a holdout."""
    vectors: tuple[Vector, ...]
    vector_set: VectorSet
    left_out: tuple[str, ...]
    """Layers that a range or ``all`` means and that cannot be steered."""

    @property
    def notes(self) -> list[str]:
        """What its reader should know."""
        negative = self.prompts.direction == self.config.search.direction == "negative"
        return [*self.left_out, *([f"{self.prompts.path.name} asks for the negative direction"] if negative else [])]

    @property
    def foreign(self) -> str | None:
        """The source of the vectors, when it is not the experiment's own."""
        return None if self.source == f"{self.experiment.name}/{self.trait}" else self.source

    def settings(self) -> list[Setting]:
        """What is tried without a search: every layer with every coefficient, or all layers at once."""
        coefficients = self.config.coefficients or (DEFAULT_COEFFICIENT,)
        if self.config.operator == "ablate":
            coefficients = (1.0,)
        if self.config.multi_layer:
            count = len(self.vectors)
            if len(coefficients) not in (1, count):
                raise UsageError(
                    f"--multi-layer steers {count} layers at once but {len(coefficients)} coefficients are given.\n"
                    f"  Give one for all, or {count}."
                )
            return [self.setting(self.vectors, coefficients * count if len(coefficients) == 1 else coefficients)]
        return [self.setting((vector,), (c,)) for vector in self.vectors for c in coefficients]

    @property
    def candidates(self) -> list[tuple[Vector, ...]]:
        """What gets a coefficient of its own in a search: every layer, or all layers together."""
        return [self.vectors] if self.config.multi_layer else [(vector,) for vector in self.vectors]

    def check(self) -> None:
        """Make sure that layers and coefficients go together.

        Raises:
            UsageError: there are too many coefficients, or too few.
        """
        if not self.config.searching:
            self.settings()
        if self.config.multi_layer and len(self.vectors) == 1:
            _warn("--multi-layer with a single layer steers that layer alone.")

    def setting(self, vectors: Sequence[Vector], coefficients: Sequence[float]) -> Setting:
        """Vectors and coefficients with everything else as configured."""
        rounded = tuple(significant(c) for c in coefficients)
        return Setting(tuple(vectors), rounded, self.config.operator, self.config.positions, self.config.incremental)


def make_plan(
    experiment: Experiment,
    source: str,
    config: EvaluateConfig,
    *,
    trait: str | None = None,
    prompts_file: Path | None = None,
    has_model: bool = False,
) -> Plan:
    """Read and check all files.

    Args:
        experiment: where results go.
        source: where vectors come from, ``experiment/category/trait``.
        config: what to do.
        trait: the trait that is judged; that of the vectors when left out.
        prompts_file: evaluation questions; the trait's own when left out.
        has_model: whether the user gave a model, so that the experiment need not name one.

    Raises:
        InputError: the first thing that is wrong.
    """
    config.check()
    from_experiment, from_trait = split_source(source)
    if not experiment.folder.is_dir() and not has_model:
        raise DataError(
            "there is no such experiment", path=experiment.folder,
            hint='Make the folder with a config.json {"model": ...}, or give --model.',
        )  # fmt: skip
    if not has_model:
        experiment.model(None)
    found = find_vectors(
        Experiment(experiment.root, from_experiment).extraction(from_trait), config.method, config.component,
        position=config.vector_position, variant=config.vector_model, prefer=_preferred(experiment, from_experiment),
    )  # fmt: skip
    vectors, left_out = _choose_vectors(found, found.num_layers, source, config)
    trait = trait or from_trait
    prompts = _read_prompts(experiment, trait, prompts_file, config)
    if prompts.direction == "negative" and config.search.direction == "positive":
        config = replace(config, search=replace(config.search, direction="negative"))
    questions, reported = split_questions(prompts.questions, config.subset, config.holdout)
    for other in config.also_judge:
        _read_prompts(experiment, other, None, config, overlap=False)
    plan = Plan(
        experiment, trait, source, config, prompts, prompts.coherence_prompt or COHERENCE, questions, reported,
        vectors, found, left_out,
    )  # fmt: skip
    plan.check()
    return plan


def split_questions(
    questions: Sequence[Question], subset: int | None, holdout: float
) -> tuple[tuple[Question, ...], tuple[Question, ...]]:
    """Questions to try settings on, and those to report on: the last ``holdout`` share, or the same ones.

    Raises:
        UsageError: too few are left for two parts.
    """
    used = tuple(questions[:subset])
    if not holdout:
        return used, used
    kept = round(len(used) * holdout)
    if not 0 < kept < len(used):
        raise UsageError(f"--holdout {holdout} of {len(used)} questions leaves a part empty.")
    return used[:-kept], used[-kept:]


def fit(plan: Plan, handle: ModelHandle) -> Plan:
    """The plan for the layers that a model has; its weights are not read.

    Ranges, percentages and ``all`` were read for the model that the vectors come from; here they are read for the one
    that is steered.

    Raises:
        ModelError: another hidden size.
        UsageError: a layer named by its number that the model lacks, or no layer is left.
    """
    model = handle.config().get_text_config()
    size = len(plan.vectors[0].values)
    if size != model.hidden_size:
        raise ModelError(
            f"the vectors of {plan.source} have {size} numbers, but {handle.name} has a hidden size of {model.hidden_size}.\n"
            "  They were extracted from another model."
        )
    if plan.vector_set.num_layers != model.num_hidden_layers:
        vectors, left_out = _choose_vectors(plan.vector_set, model.num_hidden_layers, plan.source, plan.config)
        plan = replace(plan, vectors=vectors, left_out=left_out)
        plan.check()
    known = plan.vector_set.metadata
    if known.get("num_layers", model.num_hidden_layers) != model.num_hidden_layers:
        _warn(
            f"the vectors come from a model of {known['num_layers']} layers, {handle.name} has {model.num_hidden_layers}."
        )
    if known.get("family", model.model_type) != model.model_type:
        _warn(f"the vectors come from a {known['family']} model, {handle.name} is a {model.model_type}.")
    if "tokenizer" in known:
        from residuum.store.hashing import content_hash

        if known["tokenizer"] != content_hash(handle.tokenizer().get_vocab()):
            _warn(f"the vectors come from a model with another tokenizer than {handle.name}.")
    return plan


def _choose_vectors(
    found: VectorSet, count: int, source: str, config: EvaluateConfig
) -> tuple[tuple[Vector, ...], tuple[str, ...]]:
    """The vectors of the layers that are asked for in a model of ``count`` layers, and what is left out of them."""
    selection = select_layers(config.layers, count, found.files.keys())
    return tuple(_read_vectors(found, selection.layers, source, config)), tuple(selection.notes)


def _read_vectors(found: VectorSet, layers: Sequence[int], source: str, config: EvaluateConfig) -> list[Vector]:
    vectors = []
    for layer in layers:
        vector = found.read(layer, source=source)
        if vector is None:
            continue
        if config.incremental and layer > 0:
            if layer - 1 not in found.files:
                raise UsageError(
                    f"--incremental needs the vector of layer {layer - 1} to make that of layer {layer}, and there is none."
                )
            vector = incremental(vector, found.read(layer - 1, source=source))
            if vector.norm == 0:
                _warn(f"layer {layer} adds nothing to layer {layer - 1} and is left out.")
                continue
        vectors.append(vector)
    if not vectors:
        raise UsageError(f"all vectors of layers {', '.join(map(str, layers))} are zero.")
    return vectors


def _read_prompts(
    experiment: Experiment, trait: str, given: Path | None, config: EvaluateConfig, *, overlap: bool = True
) -> PromptSet:
    path = find_prompts(experiment.root, trait, given)
    definition = load_definition(experiment.root, trait)
    written = not definition.startswith("The trait '")
    prompts = load_prompts(path, default_prompt=default_trait_prompt(definition) if written else None)
    if overlap:
        try:
            scenarios = load_scenarios(experiment, trait)
        except DataError:
            return prompts  # vectors may come without their scenarios
        warn_of_overlap(scenarios, prompts, strict=config.strict_overlap)
    return prompts


def _preferred(experiment: Experiment, vectors_from: str) -> str | None:
    """The folder of the model that the source experiment names."""
    model = Experiment(experiment.root, vectors_from).config().model
    return folder_name(Path(model).name) if model else None


def _warn(message: str) -> None:
    warnings.warn(message, SteeringWarning, stacklevel=3)
