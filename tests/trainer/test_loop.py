import dataclasses
import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from mothertongue.errors import CheckFailed, CheckpointError, DataError
from mothertongue_arbiter.certificate import Certificate, Check, Verdict
from mothertongue_arbiter.torch.run.scope import scope_of
from mothertongue_trainer import loop
from mothertongue_trainer.arithmetic import Arithmetic
from mothertongue_trainer.checkpoint import find_checkpoint, read_state
from mothertongue_trainer.events import CertificateStale, Event, StepDone
from mothertongue_trainer.loop import train
from mothertongue_trainer.recipe import Recipe
from mothertongue_trainer.rows import Batch, Rows

KILLED_AT_STEP_11 = """
import json, os, signal, sys
from pathlib import Path
import torch
from mothertongue_trainer.loop import train
from mothertongue_trainer.recipe import Recipe
from mothertongue_trainer.settings import read_settings

def die(event):
    if getattr(event, "step", None) == 11:
        os.kill(os.getpid(), signal.SIGKILL)

torch.set_num_threads(1)
recipe = read_settings(Recipe, json.loads(sys.argv[1]), place="", problems=[])
train(recipe, Path(sys.argv[2]), progress=die)
"""


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def recipe(encoded_run: Any) -> Recipe:
    """A run of 20 steps that saves every 5."""
    training = dataclasses.replace(
        encoded_run.recipe.training,
        tokens=20 * encoded_run.recipe.step_tokens,
        checkpoint_every_steps=5,
        warmup_steps=3,
        audit_again_after_steps=0,
    )
    return dataclasses.replace(encoded_run.recipe, training=training)


@pytest.fixture
def folder(encoded_run: Any, tmp_path: Path) -> Path:
    """A run folder with a tokenizer and tokens."""
    folder = tmp_path / "run"
    for name in ("tokenizer", "tokens"):
        shutil.copytree(encoded_run.folder / name, folder / name)
    return folder


@pytest.fixture
def unaudited(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Replace the arbiter, which has its own tests, by one that passes; return the steps asked about."""
    asked: list[int] = []

    def audit(run: Any, *, step: int, options: object) -> Certificate:
        asked.append(step)
        return dataclasses.replace(certificate(Verdict.PASS), scope=scope_of(run))

    monkeypatch.setattr(loop, "audit", audit)
    return asked


def certificate(verdict: Verdict) -> Certificate:
    check = Check(name="gradient values", verdict=verdict, evidence="as it is")
    return Certificate(step=0, checks=(check,), not_run=(), shapes={}, dtypes={}, seconds=0.0)


def without_none(values: Any) -> Any:
    if isinstance(values, dict):
        return {key: without_none(value) for key, value in values.items() if value is not None}
    return values


def tensors(checkpoint: Path) -> dict[str, torch.Tensor]:
    return {
        f"{name}:{key}": tensor
        for name in ("model.safetensors", "training_state.safetensors")
        for key, tensor in load_file(checkpoint / name).items()
    }


def logged_steps(folder: Path) -> list[int]:
    lines = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line)["step"] for line in lines]


def test_a_killed_run_ends_with_the_weights_of_an_unbroken_one_bit_for_bit(
    recipe: Recipe, folder: Path, tmp_path: Path
) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(folder, broken)
    unbroken = train(recipe, folder)
    assert unbroken.verdict == "PASS"
    values = json.dumps(without_none(recipe.as_dict()))
    killed = subprocess.run([sys.executable, "-c", KILLED_AT_STEP_11, values, str(broken)], check=False)
    assert killed.returncode == -signal.SIGKILL
    checkpoint = find_checkpoint(broken)
    assert checkpoint is not None
    assert checkpoint.name == "step-000010"
    resumed = train(recipe, broken)
    assert (resumed.finished, resumed.step, resumed.tokens) == (True, 20, 20 * recipe.step_tokens)
    expected, found = tensors(unbroken.checkpoint), tensors(resumed.checkpoint)
    assert expected.keys() == found.keys()
    assert all(torch.equal(expected[name], found[name]) for name in expected)
    assert logged_steps(broken) == logged_steps(folder) == [10, 20]
    assert read_state(resumed.checkpoint).certificate_verdict == "PASS"


def test_ctrl_c_finishes_the_step_saves_and_the_same_call_continues(
    recipe: Recipe, folder: Path, unaudited: list[int]
) -> None:
    def interrupt(event: Event) -> None:
        if isinstance(event, StepDone) and event.step == 7:
            signal.raise_signal(signal.SIGINT)

    stopped = train(recipe, folder, progress=interrupt)
    assert (stopped.finished, stopped.step, stopped.checkpoint.name) == (False, 7, "step-000007")
    finished = train(recipe, folder)
    assert (finished.finished, finished.step) == (True, 20)
    assert unaudited == [0]  # a run that continues was audited when it began
    again = train(recipe, folder)
    assert (again.finished, again.checkpoint) == (True, finished.checkpoint)


def test_a_run_that_continues_with_a_stale_certificate_says_what_changed_and_is_audited_again(
    recipe: Recipe, folder: Path, unaudited: list[int]
) -> None:
    first = train(recipe, folder)
    events: list[Event] = []
    changed = dataclasses.replace(recipe, audit=dataclasses.replace(recipe.audit, directions=3))
    finished = train(changed, folder, progress=events.append)
    assert [event.changed for event in events if isinstance(event, CertificateStale)] == [("recipe: audit",)]
    assert unaudited == [0, 0]
    assert (finished.finished, finished.checkpoint) == (True, first.checkpoint)
    assert train(changed, folder).finished
    assert unaudited == [0, 0]  # the new certificate holds


def test_a_certificate_that_is_gone_is_made_again(recipe: Recipe, folder: Path, unaudited: list[int]) -> None:
    train(recipe, folder)
    (folder / "audit" / "certificate.json").unlink()
    train(recipe, folder)
    assert unaudited == [0, 0]
    assert (folder / "audit" / "certificate.json").is_file()


def test_a_run_that_continues_under_code_that_fails_the_audit_is_stopped(
    recipe: Recipe, folder: Path, unaudited: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    train(recipe, folder)
    (folder / "audit" / "certificate.json").unlink()
    monkeypatch.setattr(loop, "audit", lambda run, *, step, options: certificate(Verdict.FAIL))
    with pytest.raises(CheckFailed, match="the audit failed"):
        train(recipe, folder)


def test_a_run_learns_and_keeps_only_the_last_checkpoints(
    recipe: Recipe, folder: Path, unaudited: list[int]
) -> None:
    losses: list[float] = []
    train(recipe, folder, progress=lambda event: isinstance(event, StepDone) and losses.append(event.loss))
    assert losses[0] == pytest.approx(6.4, abs=0.2)  # ln 600
    assert losses[-1] < losses[0] - 0.5
    kept = sorted(path.name for path in (folder / "checkpoints").iterdir())
    assert kept == ["step-000015", "step-000020"]


def test_a_failed_audit_stops_the_run_before_its_first_step(
    recipe: Recipe, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "audit", lambda run, *, step, options: certificate(Verdict.FAIL))
    with pytest.raises(CheckFailed, match=r"certificate.json: the audit failed at 'gradient values'"):
        train(recipe, folder)
    assert find_checkpoint(folder) is None
    written = json.loads((folder / "audit" / "certificate.json").read_text(encoding="utf-8"))
    assert written["verdict"] == "FAIL"
    state = read_state(train(recipe, folder, despite_audit=True).checkpoint)
    assert (state.despite_audit, state.certificate_verdict) == (True, "FAIL")


def test_the_run_is_audited_again_after_some_steps(
    recipe: Recipe, folder: Path, unaudited: list[int]
) -> None:
    training = dataclasses.replace(recipe.training, audit_again_after_steps=4)
    train(dataclasses.replace(recipe, training=training), folder)
    assert unaudited == [0, 4]
    assert (folder / "audit" / "certificate-step-4.json").is_file()


def test_auditing_does_not_change_what_is_trained(
    recipe: Recipe, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "other"
    shutil.copytree(folder, other)
    training = dataclasses.replace(recipe.training, tokens=6 * recipe.step_tokens, audit_again_after_steps=3)
    short = dataclasses.replace(recipe, training=training)
    audited = train(short, folder)
    monkeypatch.setattr(loop, "audit", lambda run, *, step, options: certificate(Verdict.PASS))
    plain = train(short, other)
    expected, found = tensors(plain.checkpoint), tensors(audited.checkpoint)
    assert all(torch.equal(expected[name], found[name]) for name in expected)


def test_values_that_are_not_finite_stop_the_run_and_keep_the_last_checkpoint(
    recipe: Recipe, folder: Path, unaudited: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Poisoned(Rows):
        def batch(self, step: int) -> Batch:
            if step == 12:
                with torch.no_grad():
                    models[0].head_weight[0] = float("nan")
            return super().batch(step)

    models: list[Any] = []
    build = loop.build_optimizer
    monkeypatch.setattr(loop, "build_optimizer", lambda model, c: (models.append(model), build(model, c))[1])
    with pytest.raises(CheckFailed, match=r"step 13: the weight model.embed_tokens.weight is not finite"):
        train(recipe, folder, rows=Poisoned.open(recipe, folder))
    checkpoint = find_checkpoint(folder)
    assert checkpoint is not None
    assert checkpoint.name == "step-000010"
    assert all(torch.isfinite(tensor).all() for tensor in tensors(checkpoint).values())


def test_a_recipe_that_does_not_fit_its_tokenizer_is_refused(recipe: Recipe, folder: Path) -> None:
    larger = dataclasses.replace(recipe, tokenizer=dataclasses.replace(recipe.tokenizer, vocabulary=700))
    with pytest.raises(DataError, match="has 600 entries, the recipe says 700"):
        train(larger, folder)


def test_a_recipe_that_changed_since_the_checkpoint_is_refused(
    recipe: Recipe, folder: Path, unaudited: list[int]
) -> None:
    train(recipe, folder)
    with pytest.raises(CheckpointError, match="seed was 3, the recipe says 4"):
        train(dataclasses.replace(recipe, seed=4), folder)


def test_a_run_is_not_continued_in_another_precision(
    recipe: Recipe, folder: Path, unaudited: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = Arithmetic(device=torch.device("cpu"), compute_dtype=torch.float32)
    monkeypatch.setattr(loop, "choose_arithmetic", lambda dtype: wanted)
    train(recipe, folder)
    other = dataclasses.replace(wanted, compute_dtype=torch.bfloat16)
    monkeypatch.setattr(loop, "choose_arithmetic", lambda dtype: other)
    with pytest.raises(CheckpointError, match="began in float32, this machine would go on in bfloat16"):
        train(recipe, folder)


def test_torch_is_left_as_it_was(recipe: Recipe, folder: Path, unaudited: list[int]) -> None:
    handlers = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    train(recipe, folder)
    assert not torch.are_deterministic_algorithms_enabled()
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == handlers
