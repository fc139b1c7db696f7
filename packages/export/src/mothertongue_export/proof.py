"""The proof of a bundle: read its files, run it beside PyTorch, judge it by the gates of its recipe."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from mothertongue.chat import ChatFormat
from mothertongue.errors import CheckFailed
from mothertongue.session import Session
from mothertongue.tokenizer import END
from mothertongue_export.chats import hold_chats
from mothertongue_export.choice import Choice, declared_bits
from mothertongue_export.comparison import compare, feed_in_pieces, feed_one_by_one, measure
from mothertongue_export.lint import lint
from mothertongue_export.oracle import Oracle
from mothertongue_export.parity import MAXIMUM_PREFILL_KL, ParityReport, judge
from mothertongue_export.places import first_bad_place
from mothertongue_export.weights_lint import lint_weights
from mothertongue_trainer.progress import Progress
from mothertongue_trainer.recipe import ExportConfig

COPIED_FILES = ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json")
PLACE_TOKENS = 32  # of a text, run again to find the first bad place
DEPARTURE_NATS = 0.5  # where a text leaves PyTorch for good, not by rounding


def prove(
    folder: Path,
    oracle: Oracle,
    *,
    config: ExportConfig,
    progress: Progress,
    choices: Sequence[Choice] = (),
    declared: Mapping[str, int] | None = None,
) -> ParityReport:
    """Return the proof that the bundle in `folder` is the model of the oracle's checkpoint.

    `choices` say how each matrix is stored and why; `declared` only its bits, where it was chosen before. If
    a gate is missed, the findings name the first place of the graph that computes something else, or the
    first position where the session does.

    Raises:
        BundleError: the graph does not load.
        CheckFailed: the graph loads and does not run.
    """
    checkpoint = oracle.checkpoint
    findings = [
        *_copy_findings(folder, checkpoint.folder),
        *_end_findings(folder),
        *lint(
            folder,
            tied=checkpoint.architecture.tied_embeddings,
            weights=config.weights,
            declared=declared or declared_bits(choices),
        ),
        *lint_weights(folder, checkpoint),
    ]
    session = Session.open(folder)
    progress("Holding chats", 0, None)
    try:
        chats = hold_chats(session, oracle.model, ChatFormat.open(folder), oracle.questions)
        figures = measure(
            session,
            oracle.model,
            oracle.texts,
            chats=chats,
            reference_max_abs=oracle.reference_max_abs,
            progress=progress,
        )
    except RuntimeError as error:  # as onnxruntime raises it
        raise CheckFailed(
            f"{folder}: the graph does not run: {' '.join(str(error).split())[:300]}"
        ) from error
    report = judge(figures, findings, config, choices)
    if report.verdict == "FAIL":
        found = _place(folder, session, oracle, config)
        report = dataclasses.replace(report, findings=[*findings, found])
    return report


def _place(folder: Path, session: Session, oracle: Oracle, config: ExportConfig) -> str:
    """Return a sentence on where a bundle that misses a gate departs from its checkpoint."""
    ids = max((text.ids for text in oracle.texts), key=len)[:PLACE_TOKENS]
    bits = {"fp32": 32, "int8": 8, "int4": 4}[config.weights]
    try:
        place = first_bad_place(folder, oracle.checkpoint, ids, bits=bits)
    except Exception as error:  # onnxruntime's own classes share no other base
        return f"the graph does not run in pieces: {' '.join(str(error).split())[:200]}"
    if place:
        return str(place)
    for number, text in enumerate(oracle.texts, start=1):
        ids, following = text.ids[:-1], text.ids[1:]
        exact, rows = oracle.model.logits([ids])[0], feed_one_by_one(session, ids)
        for way, kl, limit in (
            ("token by token", compare(exact, rows, following).kl, DEPARTURE_NATS),
            ("in two pieces", compare(rows, feed_in_pieces(session, ids), following).kl, MAXIMUM_PREFILL_KL),
        ):
            if not (kl <= limit).all():  # NaN included
                position = int((~(kl <= limit)).argmax())
                return (
                    f"every node of the graph is right by itself; the session departs, fed {way}, at "
                    f"position {position} of text {number}: look at its cache and its positions"
                )
    return "every node is as exact as its bits allow; its storage is too coarse for these gates"


def _copy_findings(folder: Path, checkpoint: Path) -> Iterator[str]:
    """Yield each file that a bundle copies from its checkpoint and that is another one here."""
    for name in COPIED_FILES:
        if (folder / name).read_bytes() != (checkpoint / name).read_bytes():
            yield f"{name}: differs from the one in {checkpoint}"


def _end_findings(folder: Path) -> Iterator[str]:
    """Yield what would let another program write on after the end of an answer."""
    config = json.loads((folder / "generation_config.json").read_text(encoding="utf-8"))
    end = ChatFormat.open(folder).tokenizer.special(END)
    stated = config.get("eos_token_id")
    if end not in (stated if isinstance(stated, list) else [stated]):
        yield f"generation_config.json: eos_token_id is {stated}, the id {end} of {END} expected"
