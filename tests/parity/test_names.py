"""The generated names against the published lists."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from residuum.models.names import ALIASES, METHODS, all_models, parse, shorten, subset_150


@pytest.fixture(scope="module")
def registry(shared_data: Path) -> dict[str, Any]:
    return json.loads((shared_data / "published" / "registry.json").read_text())


def test_all_398_names_and_ids_are_the_published_ones(registry) -> None:
    assert all_models() == registry["models"]


def test_the_count_of_every_method_is_the_published_one(registry) -> None:
    counts = {label: sum(name.startswith(f"{label.lower()}_") for name in all_models()) for label in METHODS}
    assert counts == registry["counts"]


def test_every_published_id_is_read_as_its_published_name(registry) -> None:
    assert {parse(hub_id).short: hub_id for hub_id in registry["models"].values()} == registry["models"]


def test_every_published_name_is_read_as_its_published_id(registry) -> None:
    assert {short: parse(short).hub_id for short in registry["models"]} == registry["models"]


def test_every_published_id_is_shortened_to_its_published_name(registry) -> None:
    assert {shorten(hub_id) for hub_id in registry["models"].values()} == set(registry["models"])


def test_every_method_alias_is_a_published_name(registry) -> None:
    assert {alias for alias, name in ALIASES.items() if name not in registry["models"]} == {"full", "retain"}


def test_the_150_are_those_with_published_results(shared_data) -> None:
    rows = json.loads((shared_data / "published" / "published_method_results.json").read_text())["models"]
    assert {row["model"] for row in rows} - {"full", "retain"} == set(subset_150())
