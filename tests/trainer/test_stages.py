import json
from pathlib import Path

import pytest

from mothertongue_trainer.stages import Stage, StageLog, run_stages


class Kitchen:
    """Two stages that count how often they ran: `dough` feeds `bread`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ran: list[str] = []
        self.fail: str | None = None
        self.flour = "rye"
        self.cookbook = folder / "cookbook.py"
        self.cookbook.write_text("knead", encoding="utf-8")

    def stages(self) -> list[Stage]:
        return [self._stage("dough", self.flour, keep=False), self._stage("bread", 220, keep=True)]

    def bake(self) -> list[str]:
        self.ran.clear()
        run_stages(self.stages(), StageLog(self.folder), announce=lambda stage, state: None)
        return list(self.ran)

    def _stage(self, name: str, settings: object, *, keep: bool) -> Stage:
        output = self.folder / name

        def run() -> None:
            self.ran.append(name)
            if self.fail == name:
                raise KeyboardInterrupt
            output.write_text(f"{name} {settings}", encoding="utf-8")

        return Stage(
            name=name, does=name, settings=settings, code=(self.cookbook,), output=output,
            keep=keep, run=run,
        )  # fmt: skip


@pytest.fixture
def kitchen(tmp_path: Path) -> Kitchen:
    return Kitchen(tmp_path)


def test_a_second_start_runs_nothing(kitchen: Kitchen) -> None:
    assert kitchen.bake() == ["dough", "bread"]
    assert kitchen.bake() == []


def test_a_changed_setting_runs_its_stage_and_all_that_follow(kitchen: Kitchen) -> None:
    kitchen.bake()
    kitchen.flour = "wheat"
    assert kitchen.bake() == ["dough", "bread"]


def test_changed_code_runs_its_stages_and_touched_code_does_not(kitchen: Kitchen) -> None:
    kitchen.bake()
    kitchen.cookbook.touch()
    assert kitchen.bake() == []
    kitchen.cookbook.write_text("fold", encoding="utf-8")
    assert kitchen.bake() == ["dough", "bread"]


def test_a_missing_output_is_made_again(kitchen: Kitchen) -> None:
    kitchen.bake()
    (kitchen.folder / "bread").unlink()
    assert kitchen.bake() == ["bread"]


def test_an_interrupted_stage_is_taken_up_and_the_one_before_it_is_not(kitchen: Kitchen) -> None:
    kitchen.fail = "bread"
    with pytest.raises(KeyboardInterrupt):
        kitchen.bake()
    assert StageLog(kitchen.folder).records["bread"].finished is False
    kitchen.fail = None
    assert kitchen.bake() == ["bread"]


def test_an_outdated_output_that_cost_hours_is_set_aside(kitchen: Kitchen) -> None:
    kitchen.bake()
    kitchen.flour = "wheat"
    kitchen.bake()
    kept = [path for path in kitchen.folder.iterdir() if path.name.startswith("bread-")]
    assert len(kept) == 1


def test_what_was_set_aside_comes_back_with_its_recipe(kitchen: Kitchen) -> None:
    baked = {}
    for flour in ("rye", "wheat", "rye", "wheat"):
        kitchen.flour = flour
        kitchen.bake()
        (kitchen.folder / "bread").write_text(f"{flour}, hours of it", encoding="utf-8")
        baked[flour] = (kitchen.folder / "bread").read_text(encoding="utf-8")
    kept = [path for path in kitchen.folder.iterdir() if path.name.startswith("bread-")]
    assert [path.read_text(encoding="utf-8") for path in kept] == [baked["rye"]]


def test_a_changed_file_outside_the_run_makes_the_stage_stale(tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("one", encoding="utf-8")
    ran: list[int] = []

    def read() -> None:
        ran.append(1)

    def start() -> None:
        stage = Stage(name="read", does="", settings=0, code=(), files=(text,), output=text, run=read)
        run_stages([stage], StageLog(tmp_path), announce=lambda stage, state: None)

    start()
    start()
    assert len(ran) == 1
    text.write_text("two, longer", encoding="utf-8")
    start()
    assert len(ran) == 2


@pytest.mark.parametrize("text", ["", "[]", "{", '{"dough": 1}', '{"dough": {"unknown": 1}}'])
def test_a_damaged_log_means_that_everything_runs(kitchen: Kitchen, text: str) -> None:
    kitchen.bake()
    (kitchen.folder / "stages.json").write_text(text, encoding="utf-8")
    assert kitchen.bake() == ["dough", "bread"]


def test_the_time_of_an_interruption_is_counted(kitchen: Kitchen) -> None:
    kitchen.fail = "dough"
    with pytest.raises(KeyboardInterrupt):
        kitchen.bake()
    log = json.loads((kitchen.folder / "stages.json").read_text(encoding="utf-8"))
    log["dough"]["seconds"] = 100.0
    (kitchen.folder / "stages.json").write_text(json.dumps(log), encoding="utf-8")
    kitchen.fail = None
    kitchen.bake()
    assert StageLog(kitchen.folder).records["dough"].seconds >= 100.0
