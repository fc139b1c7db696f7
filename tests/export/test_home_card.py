import json
import shutil
from pathlib import Path

from mothertongue_export.checkpoint import read_checkpoint
from mothertongue_export.home_card import gguf_card, huggingface_card


def test_the_gguf_card_says_that_text_must_be_in_nfc(split_as_qwen: Path) -> None:
    card = gguf_card("tiny", read_checkpoint(split_as_qwen))
    assert "**Text must be in NFC.**" in card
    assert "`tiny-Q8_0.gguf`" in card
    assert "Replace" not in card


def test_what_the_runtime_replaces_is_listed(split_as_qwen: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(split_as_qwen, tmp_path / "checkpoint")
    config = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    config["mothertongue"]["replacements"] = {"1": "১", "“": ' " '}
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    for card in (gguf_card, huggingface_card):
        assert '`1` → `১`, `“` → ` " `' in card("tiny", read_checkpoint(folder))


def test_the_example_of_the_hugging_face_card_runs(split_as_qwen: Path) -> None:
    card = huggingface_card("tiny", read_checkpoint(split_as_qwen))
    example = card.partition("```python\n")[2].partition("```")[0]
    exec(compile(example, "card", "exec"), {"folder": split_as_qwen, "question": "নদী"})
