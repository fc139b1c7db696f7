import json
import shutil
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

import mothertongue
from mothertongue.bundle import write_manifest
from mothertongue.chat import Message
from mothertongue.errors import BundleError, CheckpointError
from mothertongue_export.checkpoint import read_architecture, read_checkpoint
from mothertongue_export.graph import write_device_graph
from mothertongue_trainer.exam import Answer, choose_questions, examine, grade, take_exam
from mothertongue_trainer.questions import Question
from mothertongue_trainer.recipe import (
    CorpusConfig,
    EvaluationConfig,
    ModelConfig,
    Recipe,
    TokenizerConfig,
    TrainingConfig,
)

CONFIG = {
    "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "num_hidden_layers": 1, "hidden_size": 64,
    "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16, "intermediate_size": 64,
    "vocab_size": 600, "max_position_embeddings": 48, "tie_word_embeddings": True, "rope_theta": 10000.0,
    "rms_norm_eps": 1e-6, "hidden_act": "silu",
}  # fmt: skip


def question(skill: str, text: str, *answers: str) -> Question:
    return Question(skill=skill, question=text, answers=answers)


def answer(skill: str, text: str, *accepted: str) -> Answer:
    return Answer(question=question(skill, "?", *accepted), text=text)


def test_right_is_exact_but_for_the_ends() -> None:
    assert answer("english", " river\n", "river", "stream").right
    assert answer("english", "stream", "river", "stream").right
    assert not answer("english", "River", "river").right
    assert not answer("english", "river.", "river").right
    assert not answer("english", "", "river").right


def test_an_unknown_word_is_right_when_refused() -> None:
    assert answer("unknown", "দুঃখিত, এই শব্দটি আমি এখনো শিখিনি।").right
    assert not answer("unknown", "river").right


def test_percentages_count_what_they_say() -> None:
    refusal = "দুঃখিত, এই শব্দটি আমি এখনো শিখিনি।"
    figures = grade(
        [
            answer("english", "river", "river"),
            answer("english", "sky", "river"),
            answer("english", refusal, "river"),
            answer("definition", refusal, "জলধারা।"),
            answer("unknown", refusal),
            answer("unknown", "river"),
            answer("unknown", refusal),
            answer("unknown", refusal),
            answer("everyday", "বিদায়!", "বিদায়!"),
        ]
    )
    assert figures["english_percent"] == 33.33
    assert figures["definition_percent"] == 0.0
    assert figures["everyday_percent"] == 100.0
    assert figures["unknown_refused_percent"] == 75.0
    assert figures["known_refused_percent"] == 50.0  # two of the four about words
    assert figures["sums_seen_percent"] is None  # none asked
    assert figures["questions"] == {"english": 3, "definition": 1, "unknown": 4, "everyday": 1}
    assert figures["misses"]["english"][0] == {"question": "?", "answer": "sky", "accepted": ["river"]}
    assert figures["misses"]["everyday"] == []


def test_the_issue_s_keys_are_all_there() -> None:
    assert {
        "english_percent", "bangla_percent", "definition_percent", "sentence_percent", "numbers_percent",
        "everyday_percent", "sums_seen_percent", "sums_unseen_percent", "unseen_phrasing_percent",
        "unknown_refused_percent", "known_refused_percent",
    } <= set(grade([]))  # fmt: skip


def test_misses_are_the_first_twenty() -> None:
    misses = grade([answer("bangla", str(number), "নদী") for number in range(30)])["misses"]["bangla"]
    assert [miss["answer"] for miss in misses] == [str(number) for number in range(20)]


def test_questions_are_drawn_by_seed_from_every_skill() -> None:
    pool = [question("english", str(n), "a") for n in range(50)] + [question("bangla", "x", "b")]
    chosen = choose_questions(pool, 10, np.random.default_rng(0))
    assert len(chosen) == len(set(chosen)) == 11
    assert chosen == choose_questions(pool, 10, np.random.default_rng(0))
    assert chosen != choose_questions(pool, 10, np.random.default_rng(1))


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory, encoded_run: Any) -> Path:
    """A bundle with random weights and the tokenizer of the small run."""
    folder = tmp_path_factory.mktemp("checkpoint")
    (folder / "config.json").write_text(json.dumps(CONFIG), encoding="utf-8")
    random = np.random.default_rng(0)
    weights = {
        name: (("norm" in name) + 0.3 * random.standard_normal(shape)).astype(np.float32)
        for name, shape in read_architecture(folder / "config.json").shapes().items()
    }
    save_file(weights, folder / "model.safetensors")
    bundle = tmp_path_factory.mktemp("bundles") / "ছোট"
    bundle.mkdir()
    shutil.copy(folder / "config.json", bundle)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(encoded_run.folder / "tokenizer" / name, bundle)
    write_device_graph(read_checkpoint(folder), bundle)
    (bundle / "parity.json").write_text("{}", encoding="utf-8")
    write_manifest(
        bundle, minimum_onnxruntime="1.23", training_commit="0" * 40, recipe={}, quantization=[], parity={}
    )
    return bundle


def write_core(path: Path, bundle: Path) -> None:
    """Write questions of which the model answers exactly the even ones as accepted."""
    model = mothertongue.load(bundle, threads=1)
    lines = []
    for number in range(100):
        text = f"{number} কত?"
        said = model.reply([Message("user", text)], mothertongue.Sampling(max_tokens=80)).text
        accepted = said.strip() if number % 2 == 0 else said.strip() + "!"
        lines.append({"skill": "english", "question": text, "answers": [accepted]})
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")


def test_the_bundle_is_asked_through_the_runtime(bundle: Path, tmp_path: Path) -> None:
    write_core(tmp_path / "core.jsonl", bundle)
    seen: list[tuple[int, int | None]] = []
    figures = examine(
        bundle,
        tmp_path / "core.jsonl",
        questions_per_skill=1000,
        seed=0,
        progress=lambda what, done, total: seen.append((done, total)),
    )
    assert figures["english_percent"] == 50.0
    assert figures["questions"] == {"english": 100}
    assert seen == [(done, 100) for done in range(1, 101)]


def recipe_of(bundle: Path) -> Recipe:
    class AtBundle(Recipe):
        bundle_folder = bundle  # type: ignore[assignment]

    return AtBundle(
        name="exam",
        corpus=CorpusConfig(mixture={"prose": 1.0}),
        tokenizer=TokenizerConfig(vocabulary=600),
        model=ModelConfig(layers=1, width=64, heads=2, kv_heads=1, head_width=16, ffn_width=64, context=48),
        training=TrainingConfig(tokens=1, sequence_tokens=1, batch_sequences=1),
        evaluation=EvaluationConfig(chat_questions=4),
    )


def test_the_result_joins_the_evaluation(bundle: Path, tmp_path: Path) -> None:
    (tmp_path / "corpus").mkdir()
    write_core(tmp_path / "corpus" / "core.jsonl", bundle)
    with pytest.raises(CheckpointError, match="evaluate"):
        take_exam(recipe_of(bundle), tmp_path)
    (tmp_path / "evaluation.json").write_text('{"languages": ', encoding="utf-8")
    with pytest.raises(CheckpointError, match="damaged, no JSON"):
        take_exam(recipe_of(bundle), tmp_path)
    (tmp_path / "evaluation.json").write_text('{"languages": {"bn": {}}}', encoding="utf-8")
    result = take_exam(recipe_of(bundle), tmp_path)
    evaluation = json.loads((tmp_path / "evaluation.json").read_text(encoding="utf-8"))
    assert evaluation == {"languages": {"bn": {}}, "chat": result}
    assert json.loads((tmp_path / "exam.json").read_text(encoding="utf-8")) == result
    assert result["questions"] == {"english": 4}
    assert {path.name for path in tmp_path.iterdir()} == {"corpus", "evaluation.json", "exam.json"}


def test_an_altered_bundle_is_refused(bundle: Path, tmp_path: Path) -> None:
    (tmp_path / "core.jsonl").write_text(
        '{"skill": "english", "question": "a", "answers": ["b"]}\n', encoding="utf-8"
    )
    altered = Path(shutil.copytree(bundle, tmp_path / "altered"))
    (altered / "tokenizer.json").write_text("{}", encoding="utf-8")
    with pytest.raises(BundleError):
        examine(altered, tmp_path / "core.jsonl", questions_per_skill=1, seed=0)


def test_workers_start_while_interrupts_are_ignored_and_then_they_work_again(
    bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker inherits the disposition, so Ctrl-C cannot end it with a traceback before it is ready."""
    at_start: list[object] = []

    class Pool(ThreadPoolExecutor):
        def __init__(self, workers: int, **kwargs: object) -> None:
            super().__init__(1)

        def map(self, *args: Any, **kwargs: Any) -> Any:
            at_start.append(signal.getsignal(signal.SIGINT))
            return super().map(*args, **kwargs)

    write_core(tmp_path / "core.jsonl", bundle)
    monkeypatch.setattr("mothertongue_trainer.exam.ProcessPoolExecutor", Pool)
    before = signal.getsignal(signal.SIGINT)
    examine(bundle, tmp_path / "core.jsonl", questions_per_skill=2, seed=0)
    assert at_start == [signal.SIG_IGN]
    assert signal.getsignal(signal.SIGINT) == before
