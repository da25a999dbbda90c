"""Which folders are used, and how a user moves them."""

from __future__ import annotations

from pathlib import Path

from residuum.folders import runs_folder, user_cache


def test_the_cache_is_where_residuum_cache_says(monkeypatch) -> None:
    monkeypatch.setenv("RESIDUUM_CACHE", "/somewhere/mine")
    monkeypatch.setenv("XDG_CACHE_HOME", "/elsewhere")
    assert user_cache() == Path("/somewhere/mine")


def test_the_cache_is_a_folder_of_its_own_in_the_users_cache(monkeypatch) -> None:
    monkeypatch.delenv("RESIDUUM_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", "/elsewhere")
    assert user_cache() == Path("/elsewhere/residuum")


def test_without_any_setting_the_cache_is_below_the_home_folder(monkeypatch) -> None:
    monkeypatch.delenv("RESIDUUM_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert user_cache() == Path.home() / ".cache" / "residuum"


def test_runs_go_where_residuum_runs_says(monkeypatch) -> None:
    monkeypatch.setenv("RESIDUUM_RUNS", "/somewhere/runs")
    assert runs_folder() == Path("/somewhere/runs")


def test_runs_go_into_the_current_folder_otherwise(monkeypatch) -> None:
    monkeypatch.delenv("RESIDUUM_RUNS", raising=False)
    assert runs_folder() == Path("runs")
