"""The README's Python runs as it stands."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import residuum

README = Path(__file__).parents[2] / "README.md"


@pytest.mark.filterwarnings("ignore:the fluency classifier")
def test_the_ten_lines_of_python_make_a_report(tiny_world, tmp_path, monkeypatch, capsys):
    (block,) = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RESIDUUM_RUNS", raising=False)
    monkeypatch.setattr(residuum, "build_world", lambda: tiny_world, raising=False)  # the same, trained in seconds
    names: dict[str, object] = {}
    exec(compile(block, str(README), "exec"), names)
    uds, *_ = capsys.readouterr().out.split()
    assert float(uds) == names["r"].uds
    assert "Verdict" in Path("report.html").read_text(encoding="utf-8")
