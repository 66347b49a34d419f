"""Every recipe has the bits of its own original, while a worker is killed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from recipes.beside import FOLDER, RECIPES, Digests, Ground, Outcome, Recipe, ground, table
from slow import slow_except

#: Those that `make test-slow` shows: small, and unlike one another.
SLOW = ("imagenet", "nanogpt", "nlp_example")
FURTHER = [recipe for recipe in RECIPES if recipe.name not in SLOW]
#: Most of a run is waiting for its processes.
AT_ONCE = 3


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ground]:
    with ground(tmp_path_factory.mktemp("recipes")) as made:
        yield made


@pytest.fixture(scope="module")
def outcome_of(request: pytest.FixtureRequest, place: Ground) -> Iterator[Callable[[Recipe], Outcome]]:
    """All recipes that are tested in this run are begun at once, each on 2, 3 or 4 logical workers."""
    tests = [item for item in request.session.items if item.path == request.path]
    wanted = [item.callspec.params.get("recipe") for item in tests if hasattr(item, "callspec")]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        begun: dict[Recipe, Future[Outcome]] = {
            recipe: pool.submit(_beside, place, recipe, 2 + number % 3)
            for number, recipe in enumerate(RECIPES)
            if recipe in wanted
        }
        yield lambda recipe: begun[recipe].result()


def _beside(place: Ground, recipe: Recipe, ests: int) -> Outcome:
    expected: Digests = place.original(recipe, ests)
    return place.converted(recipe, expected, ests, seed=1, kill_count=1)


@pytest.mark.parametrize("recipe", slow_except(RECIPES, further=FURTHER), ids=lambda recipe: recipe.name)
def test_recipe_has_the_bits_of_its_original(outcome_of: Callable[[Recipe], Outcome], recipe: Recipe) -> None:
    outcome = outcome_of(recipe)
    assert outcome.verdict == "equal", outcome.said
    assert len(outcome.killed) == 1


def test_originals_know_nothing_of_elastane_and_the_page_names_every_recipe() -> None:
    page = (FOLDER.parents[1] / "docs" / "howto" / "converting.md").read_text()
    for recipe in RECIPES:
        assert "elastane" not in recipe.original.read_text().replace("elastane run", "")
        assert "DistributedDataParallel" not in recipe.converted.read_text()
        out, put_in = recipe.changed_lines()
        assert f"| `{recipe.name}` | -{out} +{put_in} |" in page


def test_a_difference_is_found(place: Ground, tmp_path: Path) -> None:
    """The original of another seed is another script."""
    recipe = Recipe("multigpu")
    outcome = place.converted(recipe, {"model": "0" * 16, "optimizer": "0" * 16}, 2, seed=1, kill_count=0)
    assert outcome.verdict == "different: model, optimizer"
    assert "different: model, optimizer (1)" in table([outcome])
