"""What a bundle is compared with: its checkpoint in PyTorch, and the text on which both are run."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from numpy.typing import NDArray

from mothertongue.chat import ChatFormat
from mothertongue.tokenizer import Tokenizer
from mothertongue_export.calibration import calibration_rows, fitting_rows
from mothertongue_export.chats import questions
from mothertongue_export.checkpoint import Checkpoint
from mothertongue_export.comparison import HeldoutText, select_texts
from mothertongue_export.pytorch import PyTorchModel, RememberedModel
from mothertongue_export.reference import reference_max_abs, write_reference
from mothertongue_trainer.document import Document
from mothertongue_trainer.progress import Progress


@dataclass(frozen=True, kw_only=True)
class Oracle:
    """One checkpoint as PyTorch computes it, on one choice of texts."""

    checkpoint: Checkpoint
    model: PyTorchModel
    texts: Sequence[HeldoutText]
    calibration_ids: NDArray[np.int64]  # (B, T)
    fitting_ids: NDArray[np.int64]  # (B, T), of neither `texts` nor `questions`
    questions: Sequence[str]
    reference_max_abs: float  # how far the plain fp32 graph is from PyTorch


@contextlib.contextmanager
def open_oracle(
    checkpoint: Checkpoint,
    *,
    heldout: Sequence[Document],
    conversations: Sequence[Document],
    progress: Progress,
    reference: Path | None = None,
) -> Iterator[Oracle]:
    """Yield the oracle of `checkpoint`; while it is open, PyTorch's logits are kept in a temporary folder.

    The fp32 reference graph is written to the folder `reference`, or thrown away.

    Raises:
        DataError: the held-out documents hold no prose.
    """
    sizes = checkpoint.architecture
    tokenizer = Tokenizer.open(checkpoint.folder)
    texts = select_texts(heldout, tokenizer, context=sizes.context, parameters=checkpoint.parameters)
    proved = {text.document for text in texts}
    unread = [document for document in heldout if document.id not in proved]
    asked = questions(conversations, heldout)
    untold = [d.messages for d in conversations if d.messages and d.messages[0].content not in asked]
    format_ = ChatFormat.open(checkpoint.folder)
    spoken = [format_.encode_learned(messages)[0] for messages in untold]
    network = PyTorchModel.open(checkpoint.folder).network
    with TemporaryDirectory() as temporary:
        scratch = Path(temporary)
        progress("Comparing the fp32 graph with PyTorch", 0, None)
        path = write_reference(checkpoint, reference or scratch / "reference")
        difference = reference_max_abs(PyTorchModel(network), path, sizes)
        yield Oracle(
            checkpoint=checkpoint,
            model=RememberedModel(network, scratch),
            texts=texts,
            calibration_ids=calibration_rows(heldout, tokenizer, context=sizes.context),
            fitting_ids=fitting_rows(unread, tokenizer, context=sizes.context, conversations=spoken),
            questions=asked,
            reference_max_abs=difference,
        )
