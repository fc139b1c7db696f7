import dataclasses
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from mothertongue_arbiter.audit import audit
from mothertongue_arbiter.run import matches
from mothertongue_trainer.audit import (
    END,
    RecipeRun,
    SyntheticRows,
    declared_optimizer,
    run_from_recipe,
    training_run,
)
from mothertongue_trainer.model import IGNORED, Qwen3
from mothertongue_trainer.optimizer import build_optimizer
from mothertongue_trainer.recipe import read_recipe
from mothertongue_trainer.rows import Batch, Rows
from mothertongue_trainer.step import mean_loss

RECIPES = Path(__file__).parents[2] / "recipes"
SMOKE = read_recipe(RECIPES / "smoke.toml")


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RecipeRun:
    """The smoke recipe in a folder without runs, so with synthetic rows."""
    monkeypatch.chdir(tmp_path)
    return run_from_recipe(RECIPES / "smoke.toml")


def failed(run: RecipeRun) -> set[str]:
    certificate = audit(run)
    return {check.name for check in certificate.checks if check.verdict == "FAIL"}


def test_the_run_of_a_recipe_passes_and_is_asked_everything(run: RecipeRun) -> None:
    certificate = audit(run)
    assert certificate.verdict == "PASS"
    assert len(certificate.checks) >= 16
    not_run = {entry.name: entry.reason for entry in certificate.not_run}
    assert "judged in the real step instead" in not_run["accumulation"]
    assert not {"gradient handed over", "update parity", "step weights", "causality", "labels"} & set(not_run)


@pytest.mark.parametrize("names", [("গদ্য", "english", "chat"), ("গদ্য",)], ids=["with chat", "prose alone"])
def test_prepared_rows_pass(encoded_run: Any, names: tuple[str, ...]) -> None:
    """In rows of prose alone what ends a document is a label and never an input."""
    mixture = {name: encoded_run.recipe.corpus.mixture[name] for name in names}
    corpus = dataclasses.replace(encoded_run.recipe.corpus, mixture=mixture)
    recipe = dataclasses.replace(encoded_run.recipe, corpus=corpus)
    model = Qwen3(recipe.model, recipe.tokenizer.vocabulary)
    rows = Rows.open(recipe, encoded_run.folder)
    run = training_run(recipe, rows, model, build_optimizer(model, recipe.optimizer))
    certificate = audit(run)
    assert certificate.verdict == "PASS", [check for check in certificate.checks if check.verdict != "PASS"]


def test_held_out_text_in_the_training_rows_fails(encoded_run: Any, tmp_path: Path) -> None:
    corpus = dataclasses.replace(
        encoded_run.recipe.corpus, mixture={"গদ্য": 1.0}
    )  # sums repeat too much to tell
    recipe = dataclasses.replace(encoded_run.recipe, corpus=corpus)
    folder = shutil.copytree(encoded_run.folder, tmp_path / "run")

    def verdict() -> str:
        model = Qwen3(recipe.model, recipe.tokenizer.vocabulary)
        run = RecipeRun(recipe, Rows.open(recipe, folder), model, build_optimizer(model, recipe.optimizer))
        return next(check.verdict for check in audit(run).checks if check.name == "held-out overlap")

    assert verdict() == "PASS"
    shutil.copy(folder / "corpus" / "গদ্য.jsonl", folder / "corpus" / "heldout.jsonl")
    assert verdict() == "FAIL"


def test_a_certificate_depends_on_what_decides_the_weights(run: RecipeRun) -> None:
    def changed(**fields: Any) -> set[str]:
        recipe = dataclasses.replace(run.recipe, **fields)
        scope = RecipeRun(recipe, run.rows, run.model, run.optimizer).scope
        return {name for name in scope if scope[name] != run.scope.get(name)}

    training, audited = run.recipe.training, run.recipe.audit
    assert changed(seed=7) == {"recipe: seed"}
    assert changed(training=dataclasses.replace(training, warmup_steps=9)) == {"recipe: training"}
    assert changed(audit=dataclasses.replace(audited, directions=5)) == {"recipe: audit"}
    assert changed(name="another", training=dataclasses.replace(training, keep_checkpoints=9)) == set()


def test_a_head_that_lost_its_tie_is_found(run: RecipeRun, monkeypatch: pytest.MonkeyPatch) -> None:
    copy = torch.nn.Parameter(run.model.head_weight.detach().clone())
    monkeypatch.setattr(Qwen3, "head_weight", property(lambda model: copy))
    assert "tied weights" in failed(run)


def test_labels_that_are_shifted_twice_are_found(run: RecipeRun, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = run.rows.batch

    def shifted(step: int) -> Batch:
        batch = honest(step)
        return dataclasses.replace(batch, targets=np.roll(batch.targets, -1, axis=1))

    monkeypatch.setattr(run.rows, "batch", shifted)
    assert "labels" in failed(run)


def test_a_step_that_descends_another_loss_is_found(run: RecipeRun, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = run.model.loss
    monkeypatch.setattr(
        run.model, "loss", lambda tokens, targets, documents: honest(tokens, targets.roll(1, 1), documents)
    )
    assert "gradient handed over" in failed(run)


def test_attention_across_documents_is_found(run: RecipeRun, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = run.model.hidden
    monkeypatch.setattr(run.model, "hidden", lambda tokens, documents, *rest: whole(tokens, None, *rest))
    assert "isolated documents" in failed(run)


def test_a_matrix_that_the_optimizer_forgets_is_found(run: RecipeRun) -> None:
    for group in run.optimizer.param_groups:
        if group["group"] == "matrix":
            del group["params"][3]
    assert "optimizer coverage" in failed(run)


def test_the_update_follows_the_recipe_by_its_own_rule(run: RecipeRun) -> None:
    answers = {check.name: check for check in audit(run).checks}
    assert answers["update parity"].evidence.startswith("10 adamw, 14 muon tensors follow their rule")
    assert "clipped as declared" in answers["gradient handed over"].evidence
    assert answers["dtypes"].verdict == "PASS"


def test_what_a_recipe_declares_names_every_parameter_once(run: RecipeRun) -> None:
    groups = declared_optimizer(SMOKE).groups
    for name, _ in run.model.named_parameters():
        owners = [group for group in groups if matches(name, group.parameters)]
        assert len(owners) == 1, name


def test_an_optimizer_that_does_not_follow_the_recipe_is_found(run: RecipeRun) -> None:
    run.optimizer.scale_learning_rates = lambda factor: None  # type: ignore[method-assign]
    check = next(check for check in audit(run).checks if check.name == "update parity")
    assert check.verdict == "FAIL"
    assert "the schedule is not applied" in check.cause


def test_a_little_decay_of_the_matrices_is_seen_through_their_bfloat16(run: RecipeRun) -> None:
    for group in run.optimizer.param_groups:
        if group["rule"] == "muon":
            group["weight_decay"] = 0.02
    check = next(check for check in audit(run).checks if check.name == "update parity")
    assert check.verdict == "FAIL"
    assert "where none is declared" in check.cause


def test_the_audit_sees_some_rows_of_the_real_step_in_as_many_micro_batches(run: RecipeRun) -> None:
    training = dataclasses.replace(SMOKE.training, micro_batch_sequences=4)
    audited = dataclasses.replace(
        SMOKE, training=training, audit=dataclasses.replace(SMOKE.audit, sequences=8)
    )
    small = RecipeRun(audited, SyntheticRows(audited), run.model, run.optimizer)
    assert small.batch(0).tokens.shape == (8, 128)
    assert [len(part.tokens) for part in small.micro_batches(0, 0)] == [2, 2, 2, 2]
    assert small.declared.accumulation == 4


def test_a_deep_recipe_is_audited_at_the_depth_it_names() -> None:
    recipe = dataclasses.replace(SMOKE, audit=dataclasses.replace(SMOKE.audit, layers=1))
    model = Qwen3(recipe.model, recipe.tokenizer.vocabulary)
    run = training_run(recipe, SyntheticRows(recipe), model, build_optimizer(model, recipe.optimizer))
    assert len(run.model.model.layers) == 1
    assert run.model.model.embed_tokens.weight.shape == model.model.embed_tokens.weight.shape


def test_a_rebuilt_run_is_fresh_and_in_the_precision_asked_for(run: RecipeRun) -> None:
    run.train_step(0)
    fresh = run.rebuild(torch.float64)
    started = run_from_recipe(RECIPES / "smoke.toml").model.head_weight
    assert torch.equal(fresh.model.head_weight, started.double())
    assert fresh.loss(fresh.model, fresh.batch(0)).dtype == torch.float64


def test_the_audited_loss_is_the_trained_one(run: RecipeRun) -> None:
    batch = run.batch(0)
    torch.testing.assert_close(run.loss(run.model, batch), mean_loss(run.model, batch))


def test_synthetic_rows_depend_on_seed_and_step_and_stay_within_documents() -> None:
    rows = SyntheticRows(SMOKE)
    one, same, other = rows.batch(3), rows.batch(3), rows.batch(4)
    assert (one.tokens == same.tokens).all()
    assert (one.tokens != other.tokens).any()
    last = one.documents[:, :-1] != one.documents[:, 1:]
    assert (one.tokens[:, :-1][last] == END).all()
    assert (one.targets[:, :-1][last] == IGNORED).all()
    assert (one.targets[:, :-1][~last] == one.tokens[:, 1:][~last]).all()


def test_a_run_carries_the_directions_and_the_seed_of_its_recipe(run: RecipeRun) -> None:
    run.recipe = dataclasses.replace(SMOKE, seed=9, audit=dataclasses.replace(SMOKE.audit, directions=5))
    assert (run.options.random_directions, run.options.seed) == (5, 9)


def test_a_certificate_over_random_rows_says_so(run: RecipeRun, encoded_run: Any) -> None:
    said = "the rows are random documents, since no tokens have been prepared"
    assert said in run.notes
    rows = Rows.open(encoded_run.recipe, encoded_run.folder)
    assert said not in RecipeRun(encoded_run.recipe, rows, run.model, run.optimizer).notes


def test_a_certificate_over_a_part_of_each_step_says_so(run: RecipeRun) -> None:
    assert "a step has 2 x 128 tokens here and 16 x 128 in the training" in run.notes
    recipe = dataclasses.replace(SMOKE, audit=dataclasses.replace(SMOKE.audit, sequences=16))
    assert len(RecipeRun(recipe, run.rows, run.model, run.optimizer).notes) == 1


def test_a_checkpoint_before_the_first_step_does_not_disturb_it(run: RecipeRun) -> None:
    state = run.checkpoint()
    run.train_step(0)  # the optimizer makes its moments
    fresh = run.rebuild()
    fresh.resume(state)
    fresh.train_step(0)
    assert all(map(torch.equal, run.model.parameters(), fresh.model.parameters()))
