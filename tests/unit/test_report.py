"""The page from stores alone: its sections, its links, and texts of others as text."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest

from pages import built
from reportable import HOSTILE, depth_result, make_store, put_evaluation, save_depth, scores
from residuum.store import Store


@pytest.fixture
def small(tmp_path):
    return make_store(tmp_path / "runs", parts=False)


def test_every_section_with_data_is_on_the_page(page):
    wanted = {"verdict", "depth", "benchmark", "tradeoff", "meta", "rtt", "steering", "provenance"}
    assert wanted <= page.ids


def test_sections_without_data_are_not(small, tmp_path):
    assert not {"meta", "rtt", "steering"} & built(small, tmp_path).ids


def test_the_page_needs_neither_torch_nor_a_plotting_library(store, tmp_path):

    code = (
        "import sys; from residuum.report.build import build_report; build_report(sys.argv[1], sys.argv[2]); "
        "print([m for m in ('torch', 'transformers', 'matplotlib', 'plotly') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(store), str(tmp_path / "r.html")], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


def test_the_page_names_no_address(page):
    assert not re.search(r"(?:src|href|url)\s*[=(]\s*[\"']?(?:https?:)?//", page.source)


def test_every_link_has_its_target(page):
    assert {link.removeprefix("#") for link in page.links} <= page.ids


def test_attacks_and_probes_stand_on_the_card(page):
    assert "relearning" in page.text
    assert "EM 0.500 to 0.900 (retain +0.050)" in page.text
    assert "model_diff: accuracy 0.200 to 0.700" in page.text
    assert "A 0.400 to B 0.650 (0.550 to 0.750)" in page.text


def test_a_model_that_hides_its_knowledge_is_flagged(page):
    assert "hidden, not erased" in page.text
    assert "ROUGE 0.380 against 0.400" in page.text


def test_texts_of_models_and_users_are_shown_as_text(tmp_path):
    root = make_store(tmp_path / "runs", text=HOSTILE)
    name = f"npo {HOSTILE}"
    save_depth(depth_result(name, text=HOSTILE), root / "uds_hostile")
    put_evaluation(Store(root), name, scores(0.5), left_out={"cka": HOSTILE})
    page = built(root, tmp_path)
    executed = [text for kind, _, _, text in page.scripts if kind is None]
    assert len(executed) == 1  # the page's own script is the only one
    assert "alert(1)" not in executed[0]
    assert "alert(1)</script>" not in page.source.replace("&lt;/script&gt;", "")
    assert HOSTILE in page.text
    assert "49" not in re.findall(r"npo [^ ]*", page.text)[0]
    texts = json.dumps(page.packs(), ensure_ascii=False)
    assert json.dumps(HOSTILE)[1:-1] in texts  # inside the examples they are as they were
