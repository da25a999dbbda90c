"""The report of a large benchmark: 400 models x 367 examples x 16 layers.

    python benchmarks/report.py                  # make the store (once), build the page, open it in Chromium
    python benchmarks/report.py --models 50

Targets: made in at most 60 s, at most 30 MB, open in at most 3 s. The store is made up, through the functions that real
runs are written with; its time is not counted.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from browsing import CHROMIUM, chromium
from reportable import METHODS, depth_result, put_evaluation, save_depth, scores
from residuum.report.build import build_report
from residuum.store import Store


def make(root: Path, models: int, examples: int, layers: int) -> None:
    """A store of so many models."""
    rng, store = random.Random(0), Store(root)
    for i in range(models):
        name = "retain90" if i == 0 else f"{METHODS[i % 4]}_lr{i // 4 + 1}e5_a{i % 7}_ep5"
        result = depth_result(
            name,
            examples=examples,
            layers=layers,
            share=1.0 if i == 0 else rng.random(),
            text="in the long history of made-up letters",
        )
        save_depth(result, root / f"uds_{name}")
        put_evaluation(store, name, scores(result.uds, utility=rng.random()))


def open_page(path: Path) -> float | None:
    """Seconds until everything is drawn; None without Chromium or playwright."""
    if CHROMIUM is None or find_spec("playwright") is None:
        return None
    with chromium() as browser:
        page = browser.new_page()
        started = time.monotonic()
        page.goto(path.resolve().as_uri())
        page.wait_for_selector("html[data-ready=yes]")
        return time.monotonic() - started


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--models", type=int, default=400)
    options.add_argument("--examples", type=int, default=367)
    options.add_argument("--layers", type=int, default=16)
    options.add_argument("--keep", type=Path, help="Make the store here and leave it.")
    chosen = options.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        root = chosen.keep or Path(scratch) / "runs"
        if not root.exists():
            started = time.monotonic()
            make(root, chosen.models, chosen.examples, chosen.layers)
            print(f"store made in {time.monotonic() - started:.0f} s")
        started, busy = time.monotonic(), time.process_time()
        page = build_report(root, Path(scratch) / "report.html")
        built, size = time.monotonic() - started, page.stat().st_size / 2**20
        busy = time.process_time() - busy
        opened = open_page(page)
    print(f"{chosen.models} models x {chosen.examples} examples x {chosen.layers} layers")
    print(f"page made in {built:.1f} s (target 60; {busy:.1f} s of CPU), {size:.1f} MB (target 30)")
    print("not opened: no Chromium" if opened is None else f"opened in {opened:.2f} s (target 3)")
    if built > 60 or size > 30 or (opened or 0) > 3:
        sys.exit("a target is missed")


if __name__ == "__main__":
    main()
