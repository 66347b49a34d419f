"""Every recipe has the bits of its own original, while a worker is killed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from recipes.beside import FOLDER, RECIPES, Ground, Recipe, ground, table
from slow import slow, slow_except

#: Those that `make test-slow` shows: small, and unlike one another.
SLOW = ("imagenet", "nanogpt", "nlp_example")
FURTHER = [recipe for recipe in RECIPES if recipe.name not in SLOW]
#: Logical workers of the recipes, in turn.
ESTS = (2, 3, 4)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ground]:
    with ground(tmp_path_factory.mktemp("recipes")) as made:
        yield made


@pytest.mark.parametrize("recipe", slow_except(RECIPES, further=FURTHER), ids=lambda recipe: recipe.name)
def test_recipe_has_the_bits_of_its_original(place: Ground, recipe: Recipe) -> None:
    ests = ESTS[RECIPES.index(recipe) % len(ESTS)]
    outcome = place.converted(recipe, place.original(recipe, ests), ests, seed=1, kill_count=1)
    assert outcome.verdict == "equal", outcome.said
    assert len(outcome.killed) == 1


def test_originals_know_nothing_of_elastane_and_the_page_names_every_recipe() -> None:
    page = (FOLDER.parents[1] / "docs" / "howto" / "converting.md").read_text()
    for recipe in RECIPES:
        assert "elastane" not in recipe.original.read_text().replace("elastane run", "")
        assert "DistributedDataParallel" not in recipe.converted.read_text()
        out, put_in = recipe.changed_lines()
        assert f"| `{recipe.name}` | -{out} +{put_in} |" in page


@slow
def test_a_difference_is_found(place: Ground, tmp_path: Path) -> None:
    """The original of another seed is another script."""
    recipe = Recipe("multigpu")
    outcome = place.converted(recipe, {"model": "0" * 16, "optimizer": "0" * 16}, 2, seed=1, kill_count=0)
    assert outcome.verdict == "different: model, optimizer"
    assert "different: model, optimizer (1)" in table([outcome])
