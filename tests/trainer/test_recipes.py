from pathlib import Path

import pytest
import torch

from mothertongue_trainer.model import Qwen3
from mothertongue_trainer.recipe import read_recipe

RECIPES = Path(__file__).parents[2] / "recipes"
# By hand: V D + layers (2 D (H + K) d + 3 D F + 2 D + 2 d) + D.
PARAMETERS = {"smoke": 164_288, "nano": 1_312_128, "small": 25_173_376, "base": 407_036_160}


@pytest.mark.parametrize("name", PARAMETERS)
def test_a_recipe_has_the_parameters_of_its_family(name: str) -> None:
    recipe = read_recipe(RECIPES / f"{name}.toml")
    assert recipe.name == name
    with torch.device("meta"):
        model = Qwen3(recipe.model, recipe.tokenizer.vocabulary)
    assert model.parameter_count == PARAMETERS[name]


def test_every_recipe_is_counted_here() -> None:
    assert {path.stem for path in RECIPES.glob("*.toml")} == set(PARAMETERS)
