"""The command line as a user meets it: in a process of its own where start-up matters, in ours where it does not."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from commanding import call


def test_help_loads_neither_torch_nor_transformers():
    script = (
        "import sys, residuum\n"
        "from residuum.cli.app import run\n"
        "try: run(['--help'])\n"
        "except SystemExit: pass\n"
        "heavy = {'torch', 'transformers', 'numpy', 'sklearn'} & set(sys.modules)\n"
        "sys.exit(f'loaded {heavy}' if heavy else 0)\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, capture_output=True)


def test_the_version_is_printed(capsys):
    assert call("--version") == 0
    assert capsys.readouterr().out.strip() == "0.1.0"


@pytest.mark.parametrize("name", ["", "npo_lr1e-5_b01_a1_ep5", "nonsense"])
def test_names_that_mean_nothing_are_refused(name, capsys):
    assert call("models", "resolve", name) == 2


def test_one_bad_file_does_not_hide_the_others(tmp_path, capsys):
    good = tmp_path / "forget.jsonl"
    good.write_text('{"question": "Who?", "answer": "Ada."}\n')
    assert call("data", "check", str(good), str(tmp_path / "missing.json"), "--json") == 2
    printed = capsys.readouterr()
    assert json.loads(printed.out)[0]["rows"] == 1
    assert "missing.json" in printed.err


def test_models_are_listed_as_objects_with_name_and_id(capsys):
    assert call("models", "ls", "--json") == 0
    rows = json.loads(capsys.readouterr().out)
    assert len(rows) == 398
    assert set(rows[0]) == {"name", "id"}


def test_a_listing_can_be_cut_to_one_method(capsys):
    assert call("models", "ls", "--method", "RMU", "--json") == 0
    assert len(json.loads(capsys.readouterr().out)) == 54


def test_a_name_resolves_to_its_id_and_back(capsys):
    call("models", "resolve", "simnpo_lr2e5_b35_a1_d1_g0125_ep5")
    hub_id = capsys.readouterr().out.strip()
    assert hub_id.endswith("_SimNPO_lr2e-05_b3.5_a1_d1_g0.125_ep5")
    call("models", "resolve", hub_id)
    assert capsys.readouterr().out.strip() == "simnpo_lr2e5_b35_a1_d1_g0125_ep5"


def test_a_near_miss_is_refused_with_the_nearest_names_and_no_traceback(capsys):
    assert call("models", "resolve", "simnpo_lr2e5_b35_a1_d1_g0126_ep5") == 2
    error = capsys.readouterr().err
    assert "simnpo_lr2e5_b35_a1_d1_g0125_ep5" in error
    assert "Traceback" not in error


def test_options_may_be_spelled_with_underscores(capsys):
    assert call("world", "build", "--no_such_option") == 2
    assert "--no-such-option" in capsys.readouterr().err


def test_data_check_lists_the_rows_that_will_be_skipped(tmp_path, capsys):
    path = tmp_path / "forget.json"
    row = {"question": "Who?", "answer": "It is Ada Lovelace.", "prefix": "It is", "entity": "Grace Hopper"}
    path.write_text(json.dumps([row]))
    assert call("data", "check", str(path)) == 0
    assert "row 1" in capsys.readouterr().out


def test_data_check_fails_on_a_row_that_cannot_be_used(tmp_path, capsys):
    path = tmp_path / "forget.jsonl"
    path.write_text('{"question": "Who?", "answer": ""}\n')
    assert call("data", "check", str(path)) == 2
    assert "answer" in capsys.readouterr().out


def test_a_missing_file_is_one_readable_line(capsys):
    assert call("data", "check", "nowhere.json") == 2
    assert capsys.readouterr().err.startswith("residuum: nowhere.json")


def test_the_doctor_names_the_extra_of_every_optional_package(capsys):
    assert call("doctor", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["packages"]["peft"]["extra"] == "lora"
    assert "cpu" in found["devices"]


def test_families_are_listed(capsys):
    assert call("ls", "families", "--json") == 0
    names = {row["name"] for row in json.loads(capsys.readouterr().out)}
    assert {"llama", "gemma2", "gpt_neox", "cohere"} <= names


def test_fetching_without_a_network_says_so(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_DATASETS_OFFLINE", "1")
    assert call("data", "fetch", "--out", str(tmp_path)) == 2
    assert "cannot fetch" in capsys.readouterr().err
