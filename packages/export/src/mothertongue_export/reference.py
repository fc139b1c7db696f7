"""The reference graph: the checkpoint as plain fp32 ONNX through optimum, and its distance from PyTorch.

It proves that the model survives the way to ONNX. What is shipped is the device graph, with its own proof.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from mothertongue_export.checkpoint import Architecture
from mothertongue_export.pytorch import PyTorchModel, quiet

TASK = "text-generation-with-past"
REFERENCE_FILE = "model.onnx"
SEQUENCE_TOKENS = 12
BATCHES = (1, 2)
SEED = 0  # of the random ids that are compared


def write_reference(model: PyTorchModel, folder: Path) -> Path:
    """Write the fp32 graph of `model` into `folder` and return its path."""
    with quiet():
        from optimum.exporters.onnx import onnx_export_from_model

        # optimum's own validation only warns; `reference_max_abs` measures and the gate decides.
        onnx_export_from_model(model.network, folder, task=TASK, device="cpu", do_validation=False)
    return folder / REFERENCE_FILE


def reference_max_abs(model: PyTorchModel, path: Path, sizes: Architecture) -> float:
    """Return the largest absolute logit difference between the graph at `path` and PyTorch.

    Every position is compared, for each batch size, with 0, 1 and all but one of the tokens in the cache.
    """
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    length = min(SEQUENCE_TOKENS, sizes.context)
    generator = np.random.default_rng(SEED)
    largest = 0.0
    for batch in BATCHES:
        ids = generator.integers(sizes.vocabulary, size=(batch, length))
        expected = model.logits(ids)
        for past in sorted({0, 1, length - 1}):
            difference = np.abs(_logits_with_cache(session, ids, past, sizes) - expected).max()
            largest = max(largest, float(difference))
    return largest


def _logits_with_cache(
    session: Any, ids: NDArray[np.int64], past: int, sizes: Architecture
) -> NDArray[np.float32]:
    """Return the logits of all positions of `ids`, the first `past` of them computed on their own."""
    batch, length = ids.shape
    caches = [name.name for name in session.get_inputs() if name.name.startswith("past_key_values.")]
    empty = np.zeros((batch, sizes.kv_heads, 0, sizes.head_width), np.float32)
    cache = dict.fromkeys(caches, empty)
    logits = []
    for begin, end in ((0, past), (past, length)):
        if begin == end:
            continue
        inputs = {
            "input_ids": ids[:, begin:end],
            "attention_mask": np.ones((batch, end), np.int64),
            "position_ids": np.tile(np.arange(begin, end), (batch, 1)),
        }
        part, *presents = session.run(["logits", *map(_present, caches)], inputs | cache)
        cache = dict(zip(caches, presents, strict=True))
        logits.append(part)
    return np.concatenate(logits, axis=1)


def _present(cache: str) -> str:
    return cache.replace("past_key_values.", "present.")
