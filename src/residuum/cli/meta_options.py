"""Options that the commands of ``residuum meta`` share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

_LIST = "published, names with commas, or a file with a name per line."
PoolP = Annotated[str, typer.Option(help=f"Models that know the forget set: {_LIST}")]
PoolN = Annotated[str, typer.Option(help=f"Models that do not: {_LIST}")]
Models = Annotated[str, typer.Option(help=f"Unlearned models to attack: {_LIST}")]
Attack = Annotated[str, typer.Option(help="quantization, relearning, or both with a comma.")]
Metrics = Annotated[str, typer.Option(help="all (the 22 of the published table), or keys and categories with commas.")]
InWorld = Annotated[
    str | None,
    typer.Option(
        "--world", help="Embedded world instead of models: a folder, or authors to build one; makes its models."
    ),
]
Size = Annotated[int, typer.Option(min=2, help="With --world: models per pool.")]
Methods = Annotated[
    str | None, typer.Option(help="With --world: unlearning methods with commas; all eight by default.")
]
Floor = Annotated[float, typer.Option(min=0, help="Least utility relative to the full model.")]
FormOption = Annotated[
    str, typer.Option("--form", help="symmetric, or one-directional (only returning knowledge counts).")
]
Common = Annotated[bool, typer.Option("--common-subset", help="Judge all metrics on the models that all can use.")]
Against = Annotated[str, typer.Option("--compare", help="The metric that every other is compared with, pair by pair.")]
RelearnLr = Annotated[float | None, typer.Option(help="Peak learning rate of relearning; 2e-5.")]
RelearnEpochs = Annotated[int | None, typer.Option(min=1, help="Epochs of relearning; 1.")]
Keep = Annotated[bool, typer.Option("--keep-relearned", help="Leave the relearned checkpoints in {runs}/relearned.")]
DataDir = Annotated[str, typer.Option(help="Folder of splits with TOFU's names, or tofu for the hub.")]
FullModel = Annotated[str, typer.Option(help="The model that knows.")]
RetainModel = Annotated[str, typer.Option(help="The model that never saw the forget set.")]
ForgetSplit = Annotated[str, typer.Option(help="forget01, forget05 or forget10.")]
Format = Annotated[str, typer.Option(help="chat, or raw for a tokenizer without a chat template.")]
SystemPrompt = Annotated[str, typer.Option(help='Of the chat; "" for none.')]
Date = Annotated[str, typer.Option(help="What Llama 3's template calls today.")]
MaskMode = Annotated[str, typer.Option(help="length, or pad_id as open-unlearning has it.")]
Compat = Annotated[str | None, typer.Option(help="published: UDS as the published code does it, errors included.")]
Fluency = Annotated[
    str | None, typer.Option(help="Gibberish classifier; the published one when left out, none for utility without it.")
]
BatchTokens = Annotated[int, typer.Option(help="Padded tokens per batch.")]
Gpu = Annotated[int | None, typer.Option(help="GPU number; the first one, else the CPU, when left out.")]
Dtype = Annotated[str, typer.Option(help="auto, float32, bfloat16 or float16.")]
Attn = Annotated[str | None, typer.Option(help="sdpa, eager or flash_attention_2.")]
Seed = Annotated[int, typer.Option(help="Seed of every bootstrap.")]
Workers = Annotated[int | None, typer.Option(min=1, help="Processes; 1, with --world 2.")]
Runs = Annotated[Path | None, typer.Option(help="Root of the run store; RESIDUUM_RUNS or runs/.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
