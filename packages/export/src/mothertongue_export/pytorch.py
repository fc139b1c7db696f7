"""The model as PyTorch computes it: the oracle of every proof, and it shares no code with us."""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray


class PyTorchModel:
    """A checkpoint in transformers: float32, eager attention, no cache."""

    def __init__(self, network: Any) -> None:
        self.network = network  # transformers' Qwen3ForCausalLM

    @classmethod
    def open(cls, folder: Path) -> PyTorchModel:
        """Return the checkpoint in `folder`; it has been read strictly before."""
        with quiet():
            import torch
            from transformers import Qwen3ForCausalLM

            network = Qwen3ForCausalLM.from_pretrained(
                folder, dtype=torch.float32, attn_implementation="eager", local_files_only=True
            )
        return cls(network.eval())

    def logits(self, ids: Sequence[Sequence[int]] | NDArray[np.int64]) -> NDArray[np.float32]:
        """Return the logits (batch, seq, V) after every position of `ids` (batch, seq)."""
        import torch

        with torch.inference_mode():
            logits: NDArray[np.float32] = self.network(torch.tensor(ids), use_cache=False).logits.numpy()
        return logits


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keep transformers and optimum off the network and off the terminal while they load or trace."""
    os.environ["HF_HUB_OFFLINE"] = (
        "1"  # read when huggingface_hub is imported; nothing of ours comes from there
    )
    from transformers.utils import logging

    log: Any = logging  # carries no annotations
    verbosity, bars = log.get_verbosity(), log.is_progress_bar_enabled()
    log.set_verbosity_error()
    log.disable_progress_bar()
    try:
        with open(os.devnull, "w", encoding="utf-8") as sink, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with contextlib.redirect_stdout(sink), contextlib.redirect_stderr(sink):
                yield
    finally:
        log.set_verbosity(verbosity)
        if bars:
            log.enable_progress_bar()
