"""One conversation's worth of computation: the graph, its key-value cache, and how far the cache is filled.

The only file that touches onnxruntime. Past and present of each layer are bound to one buffer, which the
graph appends to in place, so a step copies nothing and rewinding is only a smaller number.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mothertongue.bundle import CONFIG_FILE, GRAPH_FILE
from mothertongue.errors import BundleError
from mothertongue.threads import ThreadChoice, choose_threads


class Session:
    """A loaded graph with one cache. Feed it ids, get the logits after the last one."""

    def __init__(self, graph: Any, context: int, threads: ThreadChoice) -> None:
        self.context = context
        self.threads = threads
        self.vocabulary = int(graph.get_outputs()[0].shape[-1])
        self._graph = graph
        self._tokens: list[int] = []
        # onnxruntime reads and writes these arrays in place; they must live as long as the binding.
        self._ids = np.zeros((1, context), np.int64)
        self._mask = np.ones((1, context), np.int64)
        self._logits = np.zeros((1, 1, self.vocabulary), np.float32)
        self._cache: list[npt.NDArray[np.float32]] = []
        self._binding = graph.io_binding()
        self._bind_fixed()

    @classmethod
    def open(cls, folder: Path, *, threads: int | None = None, spinning: bool = False) -> Session:
        """Return a session on the bundle in `folder`, which the caller has verified.

        `threads` None means `choose_threads`. Threads that spin between operators are faster alone and slower
        beside other work; a device is seldom ours alone. Raises BundleError if the graph does not load.
        """
        # Deferred: training code imports this package, and `--help` must be fast.
        import onnxruntime

        choice = choose_threads(threads)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = choice.count
        options.inter_op_num_threads = 1
        options.log_severity_level = (
            3  # errors; warnings about a machine's devices are not the user's concern
        )
        options.add_session_config_entry("session.intra_op.allow_spinning", str(int(spinning)))
        path = folder / GRAPH_FILE
        try:
            config = json.loads((folder / CONFIG_FILE).read_text(encoding="utf-8"))
            context = int(config["max_position_embeddings"])
            graph = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        except (KeyError, ValueError) as error:
            raise BundleError(f"{folder / CONFIG_FILE}: {error!r}; export the bundle again") from error
        except Exception as error:  # onnxruntime's own classes share no other base
            raise BundleError(f"{path}: does not load ({error}); export the bundle again") from error
        return cls(graph, context, choice)

    @property
    def inputs(self) -> dict[str, list[int | str]]:
        """The inputs of the graph: a number for a fixed dimension, a name for a free one."""
        return {value.name: list(value.shape) for value in self._graph.get_inputs()}

    @property
    def tokens(self) -> Sequence[int]:
        """The ids in the cache, in order."""
        return self._tokens

    @property
    def position(self) -> int:
        """The number of ids in the cache."""
        return len(self._tokens)

    def reset(self) -> None:
        """Empty the cache."""
        self.rewind(0)

    def rewind(self, position: int) -> None:
        """Forget every id from `position` on; raise ValueError beyond what is cached."""
        if not 0 <= position <= self.position:
            raise ValueError(f"cannot rewind to {position}; {self.position} ids are cached")
        del self._tokens[position:]

    def feed(self, ids: Sequence[int]) -> npt.NDArray[np.float32]:
        """Append `ids` to the cache and return the logits (V,) after the last of them.

        Raises ValueError if there are none, if one is not in the vocabulary, or if they exceed the context.
        """
        count, total = len(ids), self.position + len(ids)
        if count == 0:
            raise ValueError("feed needs at least one id")
        if total > self.context:
            raise ValueError(f"{total} ids do not fit a context of {self.context}")
        if not 0 <= min(ids) <= max(ids) < self.vocabulary:
            raise ValueError(f"ids must be in [0, {self.vocabulary}), got {min(ids)} to {max(ids)}")
        self._ids[0, :count] = ids
        self._bind_input("input_ids", self._ids, (1, count))
        self._bind_input("attention_mask", self._mask, (1, total))
        self._graph.run_with_iobinding(self._binding)
        # Only now: a Ctrl-C before this line leaves the cache as it was.
        self._tokens.extend(ids)
        return self._logits.reshape(-1).copy()

    def _bind_fixed(self) -> None:
        """Bind the logits and, for each layer's key and value, one buffer as past and present."""
        for value in self._graph.get_inputs():
            if value.name.startswith("past_key_values."):
                _, kv_heads, _, head_width = value.shape
                buffer = np.zeros((1, kv_heads, self.context, head_width), np.float32)
                self._cache.append(buffer)
                self._bind_input(value.name, buffer, buffer.shape)
                self._bind_output(value.name.replace("past_key_values", "present"), buffer)
        self._bind_output("logits", self._logits)

    def _bind_input(self, name: str, array: npt.NDArray[Any], shape: tuple[int, ...]) -> None:
        self._binding.bind_input(name, "cpu", 0, array.dtype, shape, array.ctypes.data)

    def _bind_output(self, name: str, array: npt.NDArray[Any]) -> None:
        self._binding.bind_output(name, "cpu", 0, array.dtype, array.shape, array.ctypes.data)
