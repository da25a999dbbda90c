"""Helpers for tests of sweeps: a plan over the tiny world, run in this process or in one that can be killed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from commanding import call
from residuum.worlds.build import World

GRIDS = {
    4: '[[unlearn]]\nmethod = ["npo", "graddiff"]\nlr = [1e-4, 5e-4]\n',
    24: '[[unlearn]]\nmethod = ["npo", "graddiff", "simnpo", "undial", "idknll", "idkdpo"]\nlr = [1e-4, 2e-4, 5e-4]\n',
}


class Sweep:
    """A plan of unlearnings and their audits in a folder of its own."""

    def __init__(self, world: World, folder: Path, *, models: int, runs: Path | None = None, made: Path | None = None):
        self.runs, self.made, self.plan = runs or folder / "runs", made or folder / "made", folder / "PLAN.toml"
        self.folder = self.runs / "sweeps/grid"
        shared = f'epochs = 1\nbatch_size = 5\naccumulation = 1\nout = "{self.made}"\n'
        tables = [GRIDS[models] + shared]
        if models == 24:
            lr = "lr = [1e-4, 2e-4, 5e-4]\n"
            tables.append(f'[[unlearn]]\nmethod = "rmu"\nlayer = 2\n{lr}{shared}')
            tables.append(f'[[unlearn]]\nmethod = "altpo"\nalternates = "{alternates(world, folder)}"\n{lr}{shared}')
        self.plan.write_text(
            f'name = "grid"\ndo = ["uds"]\nfull_model = "{world.model("full")}"\n'
            f'retain_model = "{world.model("retain90")}"\ndata_dir = "{world.data}"\n' + "".join(tables)
        )

    def words(self, *more: object) -> list[str]:
        return ["sweep", "run", str(self.plan), "--runs", str(self.runs), *map(str, more)]

    def run(self, *more: object) -> int:
        return call(*self.words(*more))

    def start(self, *more: object) -> subprocess.Popen[str]:
        """The same in a process group of its own, so that all of it can be killed."""
        command = [sys.executable, "-m", "residuum", *self.words(*more)]
        return subprocess.Popen(
            command,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"HF_HUB_OFFLINE": "1"},
        )

    @property
    def table(self) -> str:
        return (self.folder / "table.csv").read_text()

    @property
    def logs(self) -> list[str]:
        return [path.read_text() for path in sorted((self.folder / "logs").iterdir())]


def alternates(world: World, folder: Path) -> Path:
    """AltPO's other answers; what they say does not matter here."""
    import json

    rows = [json.loads(line) for line in (world.data / "forget10.jsonl").read_text().splitlines()]
    path = folder / "alternates.jsonl"
    others = [*rows[1:], rows[0]]
    lines = [
        {"question": a["question"], "answer": a["answer"], "alternate": b["answer"]}
        for a, b in zip(rows, others, strict=True)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def unit_files(runs: Path) -> dict[str, bytes]:
    return {path.stem: path.read_bytes() for path in runs.glob("units/*/*/*.json")}


def kinds_of_units(runs: Path) -> list[str]:
    return sorted(path.name for path in (runs / "units").iterdir())
