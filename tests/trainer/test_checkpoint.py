import dataclasses
import hashlib
import json
import shutil
from pathlib import Path

import pytest
import torch

from mothertongue.errors import CheckpointError
from mothertongue_trainer.checkpoint import (
    TrainingState,
    find_checkpoint,
    load_model,
    prune_checkpoints,
    read_state,
    recipe_sha256,
    resume,
    save_checkpoint,
)
from mothertongue_trainer.model import Qwen3
from mothertongue_trainer.optimizer import MuonAdamW, build_optimizer
from mothertongue_trainer.recipe import Recipe, read_recipe

TOKENIZER = hashlib.sha256(b"{}").hexdigest()  # of the tokenizer.json of the run folder below
RECIPE = read_recipe(Path(__file__).parents[2] / "recipes" / "smoke.toml")


def trainee(seed: int = 0) -> tuple[Qwen3, MuonAdamW]:
    """A model and an optimizer with moments."""
    model = Qwen3(RECIPE.model, RECIPE.tokenizer.vocabulary, seed=seed)
    optimizer = build_optimizer(model, RECIPE.optimizer)
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=generator)
    optimizer.step()
    return model, optimizer


def state_of(step: int, recipe: Recipe = RECIPE) -> TrainingState:
    return TrainingState(
        step=step, tokens=2048 * step, recipe=recipe.as_dict(), recipe_sha256=recipe_sha256(recipe),
        tokenizer_sha256=TOKENIZER, certificate_verdict="PASS", certificate_sha256="c", despite_audit=False,
        compute_dtype="float32", device="CPU, 1 threads", versions={}, commit=None,
    )  # fmt: skip


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    folder = tmp_path / "runs" / "নতুন run"
    (folder / "tokenizer").mkdir(parents=True)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / "tokenizer" / name).write_text("{}", encoding="utf-8")
    return folder


@pytest.fixture
def saved(run_folder: Path) -> Path:
    return save_checkpoint(run_folder, *trainee(), state_of(50))


def test_a_checkpoint_restores_model_optimizer_and_state_exactly(saved: Path) -> None:
    model, optimizer = trainee()
    other, fresh = Qwen3(RECIPE.model, 1024, seed=7), None
    fresh = build_optimizer(other, RECIPE.optimizer)
    state = resume(saved, RECIPE, TOKENIZER, other, fresh)
    assert state.step == 50
    named = dict(model.named_parameters())
    for name, parameter in other.named_parameters():
        assert torch.equal(parameter, named[name])
        moments = optimizer.state[named[name]]
        assert moments.keys() == fresh.state[parameter].keys()
        assert all(torch.equal(moments[key], fresh.state[parameter][key]) for key in moments)


def test_transformers_loads_a_checkpoint_as_it_is(saved: Path) -> None:
    from transformers import AutoModelForCausalLM

    tokens = torch.arange(20).unsqueeze(0)
    with torch.no_grad():
        theirs = AutoModelForCausalLM.from_pretrained(saved)(tokens).logits
        ours = load_model(saved)(tokens)
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=0)  # sums in another order, float32


def test_the_newest_complete_checkpoint_is_found_and_older_ones_go(run_folder: Path) -> None:
    assert find_checkpoint(run_folder) is None
    folders = [save_checkpoint(run_folder, *trainee(), state_of(step)) for step in (50, 100, 150, 1_000_000)]
    (folders[-1] / "training_state.json").unlink()
    (run_folder / "checkpoints" / ".step-000200.partial").mkdir()
    assert find_checkpoint(run_folder) == folders[2]
    prune_checkpoints(run_folder, keep=2)
    left = sorted(path.name for path in (run_folder / "checkpoints").iterdir())
    assert left == ["step-000100", "step-000150", "step-1000000"]


def test_a_save_that_is_interrupted_leaves_the_one_before(
    run_folder: Path, saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mothertongue_trainer import checkpoint

    def full(*args: object, **kwargs: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoint, "save_file", full)
    with pytest.raises(OSError, match="No space left"):
        save_checkpoint(run_folder, *trainee(), state_of(100))
    assert find_checkpoint(run_folder) == saved
    read_state(saved)


@pytest.mark.parametrize("name", ["model.safetensors", "training_state.safetensors"])
def test_one_changed_byte_is_noticed(saved: Path, name: str) -> None:
    data = bytearray((saved / name).read_bytes())
    data[-1] ^= 1
    (saved / name).write_bytes(data)
    with pytest.raises(CheckpointError, match=f"{name}: missing or altered"):
        read_state(saved)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("training_state.json", None, "incomplete or not ours"),
        ("training_state.json", "{", "not a training state"),
        ("training_state.json", '{"step": 3}', "not a training state"),
        ("training_state.json", "[]", "not a training state"),
        ("model.safetensors", None, "missing or altered"),
    ],
)
def test_an_incomplete_or_foreign_checkpoint_is_refused(
    saved: Path, name: str, text: str | None, message: str
) -> None:
    (saved / name).unlink()
    if text is not None:
        (saved / name).write_text(text, encoding="utf-8")
    with pytest.raises(CheckpointError, match=message):
        read_state(saved)


def test_a_model_that_is_not_ours_is_refused(saved: Path) -> None:
    with pytest.raises(CheckpointError, match="no such checkpoint"):
        read_state(saved / "elsewhere")
    config = json.loads((saved / "config.json").read_text(encoding="utf-8"))
    (saved / "config.json").write_text(json.dumps({**config, "hidden_size": 32}), encoding="utf-8")
    with pytest.raises(CheckpointError, match="not a checkpoint of ours"):
        load_model(saved)
    shutil.rmtree(saved)
    with pytest.raises(CheckpointError, match="not a checkpoint of ours"):
        load_model(saved)


def test_a_recipe_that_changed_is_refused_by_the_name_of_the_field(saved: Path) -> None:
    training = dataclasses.replace(RECIPE.training, warmup_steps=11)
    with pytest.raises(CheckpointError, match=r"training.warmup_steps was 10, the recipe says 11"):
        resume(saved, dataclasses.replace(RECIPE, training=training), TOKENIZER, *trainee())
    tokenizer = dataclasses.replace(RECIPE.tokenizer, vocabulary=2048)
    with pytest.raises(CheckpointError, match=r"tokenizer.vocabulary was 1024, the recipe says 2048"):
        resume(saved, dataclasses.replace(RECIPE, tokenizer=tokenizer), TOKENIZER, *trainee())
    with pytest.raises(CheckpointError, match="another tokenizer"):
        resume(saved, RECIPE, "other", *trainee())


def test_what_does_not_decide_the_weights_may_change(saved: Path) -> None:
    training = dataclasses.replace(RECIPE.training, checkpoint_every_steps=7, keep_checkpoints=9)
    resume(saved, dataclasses.replace(RECIPE, name="other", training=training), TOKENIZER, *trainee())


def test_a_tokenizer_replaced_during_the_run_is_not_saved_with_it(run_folder: Path, saved: Path) -> None:
    (run_folder / "tokenizer" / "tokenizer.json").write_text("{ }", encoding="utf-8")
    with pytest.raises(CheckpointError, match="replaced since the run began; restore it"):
        save_checkpoint(run_folder, *trainee(), state_of(100))
    assert find_checkpoint(run_folder) == saved


def test_another_audit_is_the_same_recipe_and_another_width_is_not() -> None:
    asked = dataclasses.replace(RECIPE, audit=dataclasses.replace(RECIPE.audit, sequences=1))
    wider = dataclasses.replace(RECIPE, model=dataclasses.replace(RECIPE.model, ffn_width=200))
    assert recipe_sha256(asked) == recipe_sha256(RECIPE)
    assert recipe_sha256(wider) != recipe_sha256(RECIPE)
