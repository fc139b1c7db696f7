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

    def pass_through(self, ids: NDArray[np.int64], *, head_rows: int) -> None:
        """Run the layers on `ids` (batch, seq), and the head on its first `head_rows` only.

        For who looks on with hooks: the logits of all these rows would be larger than the model.
        """
        import torch

        with torch.inference_mode():
            hidden = self.network.model(torch.tensor(ids), use_cache=False).last_hidden_state
            self.network.lm_head(hidden[:head_rows])

    def greedy(self, prompt: Sequence[int], count: int, end: int) -> list[int]:
        """Return up to `count` most probable ids after `prompt`, the last of them `end` if it comes."""
        import torch

        with torch.inference_mode():
            written = self.network.generate(
                torch.tensor([prompt]), max_new_tokens=count, do_sample=False, eos_token_id=end,
                pad_token_id=end,
            )  # fmt: skip
        ids: list[int] = written[0, len(prompt) :].tolist()
        return ids


class RememberedModel(PyTorchModel):
    """A model that computes the logits of each text once, and keeps them on disk."""

    def __init__(self, network: Any, folder: Path) -> None:
        super().__init__(network)
        self._folder = folder
        self._places: dict[bytes, Path] = {}

    def logits(self, ids: Sequence[Sequence[int]] | NDArray[np.int64]) -> NDArray[np.float32]:
        """Return the logits (batch, seq, V) after every position of `ids` (batch, seq)."""
        rows = np.array(ids, np.int64)
        key = repr(rows.shape).encode() + rows.tobytes()
        if key not in self._places:
            path = self._folder / f"logits-{len(self._places)}.npy"
            np.save(path, super().logits(rows))
            self._places[key] = path
        logits: NDArray[np.float32] = np.load(self._places[key])
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
