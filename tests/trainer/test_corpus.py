import dataclasses
import hashlib
import json
from pathlib import Path

import pytest

from mothertongue.errors import DataError
from mothertongue_trainer.corpus import prepare_corpus, read_manifest
from mothertongue_trainer.document import read_documents
from mothertongue_trainer.recipe import CorpusConfig, FilesConfig, Recipe


def with_corpus(recipe: Recipe, **changes: object) -> Recipe:
    return dataclasses.replace(recipe, corpus=dataclasses.replace(recipe.corpus, **changes))


def test_every_document_is_on_one_side(encoded_run) -> None:
    corpus = encoded_run.folder / "corpus"
    heldout = {document.text for document in read_documents(corpus / "heldout.jsonl")}
    training = {
        document.text
        for name in encoded_run.recipe.corpus.mixture
        for document in read_documents(corpus / f"{name}.jsonl")
        if document.text
    }
    assert len(heldout) + len(training) == 600  # what the fixture wrote
    assert not heldout & training
    assert 30 < len(heldout) < 90  # 10 %, as near as 600 hashes come


def test_the_held_out_side_depends_on_the_text_alone(sources: Path, encoded_run, tmp_path: Path) -> None:
    renamed = tmp_path / "renamed.jsonl"
    lines = [
        document.to_json() + "\n"
        for name in ("english", "heldout")
        for document in read_documents(encoded_run.folder / "corpus" / f"{name}.jsonl")
        if document.language == "en"
    ]
    renamed.write_text("".join(reversed(lines)), encoding="utf-8")
    files = (FilesConfig(name="other", language="en", paths=(str(renamed),)),)
    recipe = with_corpus(encoded_run.recipe, files=files, mixture={"other": 1.0})
    prepare_corpus(dataclasses.replace(recipe, seed=99), tmp_path / "run")

    def heldout(folder: Path) -> set[str]:
        return {d.text for d in read_documents(folder / "corpus" / "heldout.jsonl") if d.language == "en"}

    assert heldout(tmp_path / "run") == heldout(encoded_run.folder)


def test_the_manifest_says_what_the_files_hold(encoded_run) -> None:
    corpus = encoded_run.folder / "corpus"
    manifest = json.loads((corpus / "manifest.json").read_text(encoding="utf-8"))
    assert set(manifest["files"]) == {"গদ্য.jsonl", "english.jsonl", "chat.jsonl", "heldout.jsonl"}
    for name, count in manifest["files"].items():
        data = (corpus / name).read_bytes()
        bodies = [json.loads(line) for line in data.decode().splitlines()]
        texts = [b["text"] if "text" in b else "".join(m["content"] for m in b["messages"]) for b in bodies]
        assert count["sha256"] == hashlib.sha256(data).hexdigest()
        assert count["documents"] == len(bodies)
        assert count["characters"] == sum(map(len, texts))
        assert count["bytes"] == sum(len(text.encode()) for text in texts)
        assert dataclasses.asdict(read_manifest(corpus).files[name]) == count
    assert [source["name"] for source in manifest["sources"]] == ["গদ্য", "english", "chat"]
    assert manifest["files"]["chat.jsonl"]["languages"] == {
        "bn": manifest["files"]["chat.jsonl"]["characters"]
    }
    assert (corpus / "core.jsonl").read_text(encoding="utf-8") == ""


def test_a_failure_leaves_the_corpus_that_was_there(encoded_run, sources: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    prepare_corpus(encoded_run.recipe, run)
    before = {path.name: path.read_bytes() for path in (run / "corpus").iterdir()}
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"text": "fine"}\n{', encoding="utf-8")
    files = (FilesConfig(name="chat", language="en", paths=(str(bad),)),)
    with pytest.raises(DataError, match=r"bad\.jsonl:2"):
        prepare_corpus(with_corpus(encoded_run.recipe, files=files), run)
    assert {path.name: path.read_bytes() for path in (run / "corpus").iterdir()} == before


def test_a_component_without_text_is_named(encoded_run, tmp_path: Path) -> None:
    recipe = with_corpus(encoded_run.recipe, mixture={"english": 1.0, "poems": 1.0, "letters": 1.0})
    with pytest.raises(DataError, match="no training text for poems, letters"):
        prepare_corpus(recipe, tmp_path)


def test_a_single_text_cannot_be_split(encoded_run, tmp_path: Path) -> None:
    text = tmp_path / "novel.txt"
    text.write_text("It was a dark and stormy night.", encoding="utf-8")
    files = (FilesConfig(name="novel", language="en", paths=(str(text),)),)
    config = CorpusConfig(mixture={"novel": 1.0}, files=files, heldout_percent=2)
    with pytest.raises(DataError, match=r"none of the 1 documents fell into the held-out 2 %; cut the text"):
        prepare_corpus(dataclasses.replace(encoded_run.recipe, corpus=config), tmp_path / "run")
    assert not (tmp_path / "run" / "corpus").exists()


def test_a_manifest_that_cannot_be_read_names_the_command_that_makes_it(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="missing; run `mothertongue prepare`"):
        read_manifest(tmp_path)
    for content in ("{", "[]", '{"files": {"a": {}}, "sources": []}', '{"files": {}}'):
        (tmp_path / "manifest.json").write_text(content, encoding="utf-8")
        with pytest.raises(DataError, match="not a manifest of this version"):
            read_manifest(tmp_path)
