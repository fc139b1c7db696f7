"""Prepare a corpus: every source of a recipe, normalised, split and counted, as one folder of JSON lines.

runs/NAME/corpus/COMPONENT.jsonl    training documents
                 heldout.jsonl      prose that no later stage trains on
                 core.jsonl         questions with accepted answers, if the dictionary is a source
                 manifest.json      counts, hashes, sources and their licences
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from mothertongue.errors import DataError
from mothertongue_trainer.dictionary import dictionary_documents
from mothertongue_trainer.document import Document
from mothertongue_trainer.files import matching_paths, read_files
from mothertongue_trainer.holdout import is_held_out
from mothertongue_trainer.progress import Progress, silent
from mothertongue_trainer.questions import Question
from mothertongue_trainer.recipe import CorpusConfig, Recipe

HELD_OUT = "heldout"  # the component, and so the file, of text that no stage trains on
CORE = "core"


@dataclass(frozen=True, kw_only=True)
class FileCount:
    """One file of a prepared corpus."""

    documents: int
    characters: int  # Unicode code points of the text alone
    bytes: int  # UTF-8 bytes of the text alone
    languages: dict[str, int]  # language -> characters
    turns: int  # questions in the longest conversation; 0 if all is prose
    sha256: str  # of the file


@dataclass(frozen=True, kw_only=True)
class CorpusManifest:
    """What `manifest.json` says of a prepared corpus."""

    files: dict[str, FileCount]  # file name -> count
    sources: tuple[dict[str, Any], ...]  # where the text came from, with its licence as stated there


def prepare_corpus(recipe: Recipe, run_folder: Path, *, progress: Progress = silent) -> CorpusManifest:
    """Write `run_folder`/corpus from the sources of `recipe`; the folder appears whole or not at all.

    Raises:
        DataError: a source is missing or damaged, a component of the mixture has no text, or nothing was held
            out.
    """
    temporary = run_folder / "corpus.tmp"
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    progress("reading sources", 0, None)
    sources = read_sources(recipe.corpus, seed=recipe.seed)
    manifest = _write_documents(sources, temporary, recipe.corpus, progress)
    _check(manifest, recipe.corpus)
    with (temporary / f"{CORE}.jsonl").open("w", encoding="utf-8") as file:
        for question in sources.questions:
            file.write(json.dumps(dataclasses.asdict(question), ensure_ascii=False) + "\n")
    text = json.dumps(dataclasses.asdict(manifest), ensure_ascii=False, indent=2) + "\n"
    (temporary / "manifest.json").write_text(text, encoding="utf-8")
    replace_folder(temporary, run_folder / "corpus")
    return manifest


def read_manifest(folder: Path) -> CorpusManifest:
    """Return what manifest.json says of the corpus in `folder`.

    Raises:
        DataError: it is missing or of another version.
    """
    path = folder / "manifest.json"
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        files = {name: FileCount(**count) for name, count in values["files"].items()}
        return CorpusManifest(files=files, sources=tuple(values["sources"]))
    except FileNotFoundError:
        raise DataError(f"{path}: missing; run `mothertongue prepare` with this recipe") from None
    except (ValueError, KeyError, TypeError, AttributeError):
        raise DataError(f"{path}: not a manifest of this version; run `mothertongue prepare` again") from None


def replace_folder(temporary: Path, folder: Path) -> None:
    """Rename `temporary` to `folder`, in place of the folder that may be there."""
    outdated = folder.with_name(f"{folder.name}.old")
    shutil.rmtree(outdated, ignore_errors=True)
    if folder.exists():
        os.replace(folder, outdated)
    os.replace(temporary, folder)
    shutil.rmtree(outdated, ignore_errors=True)


@dataclass(frozen=True, kw_only=True)
class Sources:
    """What all sources of a recipe give."""

    documents: Iterable[Document]  # the held-out ones in the component `HELD_OUT`
    questions: Sequence[Question]
    descriptions: Sequence[dict[str, Any]]


def read_sources(config: CorpusConfig, *, seed: int) -> Sources:
    """Open the dictionary and the files of a recipe; files are read as their documents are asked for."""
    descriptions: list[dict[str, Any]] = [
        {"name": files.name, "language": files.language, "files": list(map(str, matching_paths(files)))}
        for files in config.files
    ]
    if config.dictionary is None:
        return Sources(documents=_split_files(config), questions=(), descriptions=descriptions)
    dictionary = dictionary_documents(config.dictionary, heldout_percent=config.heldout_percent, seed=seed)
    heldout = [dataclasses.replace(document, component=HELD_OUT) for document in dictionary.heldout]
    return Sources(
        documents=chain(*dictionary.components.values(), heldout, _split_files(config)),
        questions=dictionary.core,
        descriptions=[{"name": dictionary.source, "licence": dictionary.licence}, *descriptions],
    )


def _split_files(config: CorpusConfig) -> Iterator[Document]:
    """Yield the documents of all files; held-out prose moves to the component `HELD_OUT`.

    A conversation is always training text: quality is measured on prose.
    """
    for document in read_files(config.files):
        if document.text and is_held_out(document.text, config.heldout_percent):
            yield dataclasses.replace(document, component=HELD_OUT)
        else:
            yield document


def _write_documents(
    sources: Sources, folder: Path, config: CorpusConfig, progress: Progress
) -> CorpusManifest:
    """Write each document to the file of its component; drop what the mixture does not ask for."""
    with ExitStack() as stack:
        files = {
            name: stack.enter_context(DocumentFile(folder / f"{name}.jsonl"))
            for name in (*config.mixture, HELD_OUT)
        }
        for number, document in enumerate(sources.documents, start=1):
            if document.component in files:
                files[document.component].write(document)
            if number % 1000 == 0:
                progress("documents", number, None)
    return CorpusManifest(
        files={file.path.name: file.count() for file in files.values()},
        sources=tuple(sources.descriptions),
    )


class DocumentFile:
    """A file of documents that counts and hashes what is written to it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = path.open("wb")
        self._sha256 = hashlib.sha256()
        self._documents = self._bytes = self._turns = 0
        self._languages = Counter[str]()

    def __enter__(self) -> DocumentFile:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()

    def write(self, document: Document) -> None:
        line = document.to_json().encode() + b"\n"
        self._file.write(line)
        self._sha256.update(line)
        self._documents += 1
        self._languages[document.language] += document.characters
        self._bytes += sum(len(passage.encode()) for passage in document.passages)
        self._turns = max(self._turns, document.turns)

    def count(self) -> FileCount:
        return FileCount(
            documents=self._documents,
            characters=self._languages.total(),
            bytes=self._bytes,
            languages=dict(self._languages),
            turns=self._turns,
            sha256=self._sha256.hexdigest(),
        )


def _check(manifest: CorpusManifest, config: CorpusConfig) -> None:
    empty = [name for name in config.mixture if not manifest.files[f"{name}.jsonl"].documents]
    if empty:
        raise DataError(
            f"corpus.mixture: no training text for {', '.join(empty)}; "
            "add documents to the source or remove the share"
        )
    if not manifest.files[f"{HELD_OUT}.jsonl"].documents:
        documents = sum(count.documents for count in manifest.files.values())
        raise DataError(
            f"corpus: none of the {documents} documents fell into the held-out {config.heldout_percent} %; "
            "cut the text into more documents (one a line in a .jsonl file) or raise corpus.heldout_percent"
        )
