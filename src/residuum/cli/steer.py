"""``residuum steer``: does a direction control behaviour, or bring the knowledge back?"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from residuum.cli import steer_options as o
from residuum.cli.app import print_table
from residuum.cli.steer_tables import show_result, show_step
from residuum.errors import PartlyFailed, UsageError


@o.steer.command("extract")
def extract_command(
    experiment: Annotated[str, typer.Option(help="Experiment that receives the vectors.")],
    trait: o.Trait,
    model: o.Model = None,
    methods: Annotated[
        str, typer.Option("--methods", "--method", help="Comma-separated, or all: see the docs.")
    ] = "mean_diff,probe,random_baseline",
    components: Annotated[
        str, typer.Option("--components", "--component", help="residual, attn_out, mlp_out, *_contribution.")
    ] = "residual",
    position: Annotated[str, typer.Option(help="Tokens that are averaged, such as response[:5] or prompt[-1].")] = (
        "response[:5]"
    ),
    layers: Annotated[str, typer.Option(help="16, 5-20, 5,10,15, 30%-60% or all.")] = "all",
    max_new_tokens: Annotated[int | None, typer.Option(help="Length of responses; what the position needs.")] = None,
    rollouts: Annotated[int, typer.Option(help="Responses per scenario (with a temperature).")] = 1,
    temperature: Annotated[float, typer.Option(help="0 is greedy.")] = 0.0,
    val_split: Annotated[float, typer.Option(help="Share of scenarios held out for the quality metrics.")] = 0.2,
    normalize: Annotated[bool, typer.Option(help="Store vectors of length one.")] = False,
    seed: Annotated[int, typer.Option(help="Of sampling and random vectors.")] = 42,
    chat: Annotated[
        bool | None, typer.Option("--chat/--no-chat", help="Chat template; when there is one, if left out.")
    ] = None,
    force: Annotated[bool, typer.Option(help="Extract again.")] = False,
    root: o.Root = Path(),
    gpu: o.Gpu = None,
    dtype: o.Dtype = "auto",
    attn: o.Attn = None,
    as_json: o.AsJson = False,
) -> None:
    """Which direction tells answers with a trait from answers without it?

    Examples: `residuum steer extract --experiment gemma-2-2b-it --trait og_10/confidence`,
    `residuum steer extract --experiment mine --trait refusal/harm --position 'prompt[-1]' --methods all`
    """
    from residuum.models.handles import ModelHandle
    from residuum.steering.experiments import Experiment
    from residuum.steering.extract import ExtractConfig, extract
    from residuum.steering.layers import select_layers
    from residuum.steering.methods import METHODS

    place = Experiment(root, experiment)
    options = o.load_options(gpu, dtype, attn)
    config = ExtractConfig(
        methods=tuple(METHODS) if methods == "all" else o.split_words(methods, "--methods"),
        components=o.split_words(components, "--components"), position=position, max_new_tokens=max_new_tokens,
        rollouts=rollouts, temperature=temperature, val_split=val_split, normalize=normalize, seed=seed,
    )  # fmt: skip
    config.check()
    if layers != "all":
        count = ModelHandle(place.model(model), **options).config().get_text_config().num_hidden_layers
        config = replace(config, layers=tuple(select_layers(layers, count, range(count)).layers))
    rows = extract(place, trait, model=model, config=config, chat=chat, force=force, load_options=options)
    if as_json:
        typer.echo(json.dumps(rows, indent=1))
        return
    shown = (
        "method",
        "component",
        "layer",
        "accuracy",
        "auc",
        "effect_size",
        "separation",
        "pair_agreement",
        "combined",
    )
    print_table(f"vectors of {trait} on held-out scenarios", [{key: row[key] for key in shown} for row in rows])
    typer.echo(f"written to {place.extraction(trait)}")


@o.steer.command("evaluate")
def evaluate_command(
    experiment: o.ExperimentName,
    vector_from_trait: Annotated[str, typer.Option(help="Vectors: 'experiment/category/trait'.")],
    layers: Annotated[str, typer.Option(help="'16', '5-20', '5,10,15', '30%-60%' or 'all'.")] = "all",
    coefficients: Annotated[
        str | None, typer.Option(help="Comma-separated, only used with --no-find-coef; 2.0 when left out.")
    ] = None,
    method: Annotated[str, typer.Option(help="Vector extraction method.")] = "probe",
    component: Annotated[str, typer.Option(help="residual, attn_out, mlp_out, *_contribution.")] = "residual",
    rollouts: Annotated[int, typer.Option(help="Answers per question (only useful with a temperature).")] = 1,
    temperature: Annotated[float, typer.Option(help="0 is deterministic.")] = 0.0,
    judge: o.Judge = "openai",
    subset: Annotated[int | None, typer.Option(help="Use the first N questions; all when left out.")] = None,
    multi_layer: Annotated[bool, typer.Option("--multi-layer", help="Steer all layers at once.")] = False,
    incremental: Annotated[bool, typer.Option("--incremental", help="Use v[i] - v[i-1].")] = False,
    find_coef: Annotated[bool, typer.Option("--find-coef/--no-find-coef", help="Search the coefficients.")] = True,
    model: o.Model = None,
    trait: Annotated[str | None, typer.Option(help="Trait that is judged; that of the vectors when left out.")] = None,
    search: Annotated[str, typer.Option(help="seed (x1.3 / x0.9) or bracket.")] = "seed",
    search_steps: Annotated[int, typer.Option(help="Evaluations per layer.")] = 4,
    start_mult: Annotated[float, typer.Option(help="First multiple of base_coef.")] = 1.0,
    up_mult: Annotated[float, typer.Option(help="Factor after a coherent step.")] = 1.3,
    down_mult: Annotated[float, typer.Option(help="Factor after an incoherent step.")] = 0.9,
    momentum: Annotated[float, typer.Option(help="Smooths the factors; 0 is the plain rule.")] = 0.0,
    min_coherence: Annotated[float, typer.Option(help="From here on a text counts as coherent.")] = 70.0,
    direction: Annotated[str, typer.Option(help="positive, or negative to suppress the trait.")] = "positive",
    operator: Annotated[str, typer.Option(help="add, ablate or cap.")] = "add",
    positions: Annotated[str, typer.Option(help="all, response, generated, prompt or first:K.")] = "all",
    max_new_tokens: Annotated[int, typer.Option(help="Most tokens of an answer.")] = 128,
    thinking: Annotated[str, typer.Option(help="off, judge-answer or judge-thinking.")] = "off",
    holdout: Annotated[float, typer.Option(help="Share of questions kept for the reported number.")] = 0.0,
    controls: Annotated[int, typer.Option(help="Random vectors of equal length at the best setting.")] = 5,
    also_judge: Annotated[str, typer.Option(help="Other traits to judge the best answers on, comma-separated.")] = "",
    batch_layers: Annotated[str, typer.Option(help="Settings in one batch; auto takes all.")] = "auto",
    judge_model: o.JudgeModel = None,
    judge_base_url: o.JudgeBaseUrl = None,
    judge_scoring: o.JudgeScoring = "auto",
    judge_log: o.JudgeLog = None,
    judge_cache: o.JudgeCache = True,
    judge_concurrency: o.JudgeConcurrency = 20,
    max_judge_calls: o.MaxJudgeCalls = None,
    prompts_file: o.PromptsFile = None,
    strict_overlap: Annotated[bool, typer.Option(help="Refuse questions that are extraction scenarios.")] = False,
    vector_model: Annotated[str | None, typer.Option(help="Which model's vectors, if several are there.")] = None,
    vector_position: Annotated[str | None, typer.Option(help="Which position, if several are there.")] = None,
    seed: Annotated[int, typer.Option(help="Of sampling.")] = 42,
    fresh: Annotated[bool, typer.Option("--fresh", help="Archive earlier runs of this trait and start anew.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Make finished runs again.")] = False,
    keep_previous: Annotated[
        bool, typer.Option("--keep-previous", help="With --force: keep the replaced runs as .json.prev.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be done and what is done; no model, no judge.")
    ] = False,
    root: o.Root = Path(),
    runs: o.Runs = None,
    gpu: o.Gpu = None,
    dtype: o.Dtype = "auto",
    attn: o.Attn = None,
    as_json: o.AsJson = False,
) -> None:
    """Does adding a vector while the model writes change what a judge sees in its answers?

    Examples: `residuum steer evaluate --experiment gemma-2-2b-it --vector-from-trait gemma-2-2b-base/og_10/confidence`,
    `residuum steer evaluate --experiment e --vector-from-trait e/mood/cheerful --no-find-coef --layers 10,12 --coefficients 50,100`
    """
    from residuum.steering.config import EvaluateConfig
    from residuum.steering.evaluate import evaluate
    from residuum.steering.experiments import Experiment
    from residuum.steering.forecast import forecast
    from residuum.steering.search import SearchConfig
    from residuum.steering.settings import Generation

    config = EvaluateConfig(
        layers=layers, coefficients=o.split_numbers(coefficients), find_coef=find_coef, method=method, component=component,
        operator=operator, positions=positions, multi_layer=multi_layer, incremental=incremental, subset=subset,
        holdout=holdout, controls=controls, also_judge=o.split_words(also_judge, "--also-judge") if also_judge else (),
        search=SearchConfig(search, search_steps, start_mult, up_mult, down_mult, min_coherence, momentum, direction),
        generation=Generation(max_new_tokens, temperature, rollouts, seed, thinking=thinking),
        batch_layers=o.batch_count(batch_layers), strict_overlap=strict_overlap,
        vector_position=vector_position, vector_model=vector_model,
    )  # fmt: skip
    place = Experiment(root, experiment)
    options = o.judge_options(judge_model, judge_base_url, judge_scoring, judge_log, judge_concurrency, max_judge_calls, gpu)  # fmt: skip
    if dry_run:
        told = forecast(
            place, vector_from_trait, config=config, trait=trait, model=model, judge=judge, judge_options=options,
            prompts_file=prompts_file, runs=runs, fresh=fresh, force=force,
        )  # fmt: skip
        typer.echo(json.dumps(told, indent=1))
        return
    result = evaluate(
        place, vector_from_trait, config=config, trait=trait, model=model, judge=judge, judge_options=options,
        judge_cache=judge_cache, prompts_file=prompts_file, runs=runs, fresh=fresh, force=force,
        keep_previous=keep_previous, load_options=o.load_options(gpu, dtype, attn), on_step=show_step,
    )  # fmt: skip
    if as_json:
        typer.echo(json.dumps(result, indent=1))
    else:
        show_result(result)
    if result["failed"]:
        raise PartlyFailed(f"the judge failed on {', '.join(result['failed'])}; the answers are saved, run it again.")


@o.steer.command("serve-judge")
def serve_judge(
    model: Annotated[str, typer.Option(help="The judge: name, hub id, folder or GGUF file.")],
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port; 0 takes a free one.")] = 8000,
    gpu: o.Gpu = None,
    dtype: o.Dtype = "auto",
    attn: o.Attn = None,
) -> None:
    """Serve a local model as a judge over the OpenAI protocol, with top_logprobs.

    Examples: `residuum steer serve-judge --model judges/small --port 8000`, then
    `OPENAI_BASE_URL=http://127.0.0.1:8000/v1 OPENAI_API_KEY=none residuum steer evaluate ...`
    """
    if not 0 <= port <= 65535:
        raise UsageError(f"--port is between 0 and 65535, not {port}.")
    from residuum.models.loading import load
    from residuum.steering.judge.server import JudgeServer

    server = JudgeServer(load(model, **o.load_options(gpu, dtype, attn)), host=host, port=port)
    typer.echo(f"serving {server.lm.name} at {server.url}")
    try:
        server.serve_forever()
    finally:
        server.server_close()
