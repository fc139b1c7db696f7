"""What README and docs tell a reader to type exists."""

import re
import tomllib
from importlib.metadata import entry_points
from pathlib import Path

import pytest
from click.testing import CliRunner

from mothertongue.command import main
from mothertongue_trainer.recipe import CorpusConfig
from mothertongue_trainer.settings import read_settings

ROOT = Path(__file__).parents[1]
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


def fences(path: Path, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", path.read_text(encoding="utf-8"), re.DOTALL)


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_every_command_in_a_shell_block_exists(path: Path) -> None:
    targets = set(
        re.findall(r"^([a-z]+):.*## ", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    )
    commands = {entry_point.name for entry_point in entry_points(group="mothertongue.commands")}
    for block in fences(path, "sh"):
        assert set(re.findall(r"\bmake ([a-z]+)", block)) <= targets
        assert set(re.findall(r"\bmothertongue ([a-z]+)", block)) <= commands
        for recipe in re.findall(r"recipes/(?!mine)\w+\.toml", block):
            assert (ROOT / recipe).is_file(), recipe


def test_the_recipe_of_the_readme_is_one() -> None:
    (block,) = fences(ROOT / "README.md", "toml")
    problems: list[str] = []
    values = {"mixture": {"news": 1.0}, **tomllib.loads(block)["corpus"]}
    read_settings(CorpusConfig, values, place="corpus", problems=problems)
    assert problems == []


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_every_link_to_a_file_leads_somewhere(path: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", path.read_text(encoding="utf-8")):
        assert target.startswith("http") or (path.parent / target).exists(), target


def test_the_list_of_commands_cuts_no_sentence_short() -> None:
    listed = CliRunner().invoke(main, ["--help"]).stdout.partition("Commands:")[2].strip().splitlines()
    assert len(listed) == 13
    assert all(line.endswith(".") and not line.endswith("...") for line in listed)
