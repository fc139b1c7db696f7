"""The engine and its sessions: the weights once, and for each conversation a key-value cache.

The only file that touches onnxruntime. Past and present of each layer are bound to one buffer, which the
graph appends to in place, so a step copies nothing and rewinding is only a smaller number. A buffer has room
for the whole context, but the system gives it memory only as it is filled.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from mothertongue.bundle import GRAPH_FILE
from mothertongue.busyness import REVIEW_S, SpinPolicy, Watch
from mothertongue.conformance import read_sizes
from mothertongue.errors import BundleError
from mothertongue.graph import KEEP_INPUT
from mothertongue.pages import Range, address, file_ranges, gather_behind, let_go, private_ranges, unfilled
from mothertongue.threads import SYSTEM_ROOT, ThreadChoice, allowed_cpus, choose_threads, cpu_quota

# Ids computed at once: as fast as longer pieces, a quarter of the memory of 512, and soon cancelled.
CHUNK_TOKENS = 128
# Longer than Python takes between two tokens, shorter than the gap between answers: as fast as the default
# (11.4 and 11.2 ms a token of the base model; 100 microseconds: 14.9), and an idle CPU is left alone.
SPIN_US = 1000
INTEGERS = frozenset(("input_ids", "attention_mask", KEEP_INPUT))  # the others are float32
SHORTEST_LOOK_S = 0.1  # at the machine, before the first decision; loading takes no longer to come to it

Place: TypeAlias = tuple[int, tuple[int, ...]]  # of an array: address and shape


class Engine:
    """The weights of a bundle, loaded once for any number of sessions and threads."""

    def __init__(
        self, folder: Path, *, threads: ThreadChoice, spinning: bool | None, watch: Watch | None
    ) -> None:
        self.threads = threads
        self.context = read_sizes(folder).context
        self.spinning = bool(spinning)
        self._path = folder / GRAPH_FILE
        self._watch = watch or Watch()
        self._policy: SpinPolicy | None = None
        if spinning is None:
            cpus = len(allowed_cpus())
            self._policy = SpinPolicy(threads=threads.count, cpus=cpus, quota=cpu_quota(SYSTEM_ROOT))
            if self._watch.age_s >= SHORTEST_LOOK_S:
                self.spinning = self._wanted()
        # Held for a moment by each run, and throughout a change of the graph.
        self._lock = threading.Lock()
        self._running = 0
        self._sessions: weakref.WeakSet[Session] = weakref.WeakSet()
        self._files = self._file_stamps()
        self.table: list[Range] = []  # where rows are read from the file itself
        self._graph: Any = self._open_graph()
        self.inputs: dict[str, list[int | str]] = {
            value.name: list(value.shape) for value in self._graph.get_inputs()
        }
        self.vocabulary = int(self._graph.get_outputs()[0].shape[-1])
        self.keeps_any_logits = KEEP_INPUT in {v.name for v in self._graph.get_overridable_initializers()}

    @classmethod
    def open(
        cls,
        folder: Path,
        *,
        threads: int | None = None,
        spinning: bool | None = None,
        watch: Watch | None = None,
    ) -> Engine:
        """Return the engine of the bundle in `folder`, which the caller has verified, warmed up.

        `threads` None means `choose_threads`; `spinning` None lets it follow how busy the machine is, as
        `watch` has seen it since it was made. Raises BundleError if the graph does not load.
        """
        engine = cls(folder, threads=choose_threads(threads), spinning=spinning, watch=watch)
        engine.session().feed([0])  # the first run is slower than all others
        return engine

    @staticmethod
    def prepare() -> None:
        """Load onnxruntime, which takes a tenth of a second; `open` does it otherwise."""
        import onnxruntime  # noqa: F401

    def session(self) -> Session:
        """Return a new session with an empty cache; raise BundleError if its memory cannot be had."""
        try:
            session = Session(self)
        except (MemoryError, OSError):
            raise BundleError(
                f"{self._path.parent}: no memory for a cache of {self.context} tokens; close other programs"
            ) from None
        with self._lock:
            self._sessions.add(session)
        return session

    def run(self, session: Session) -> None:
        """Compute what `session` has bound; between two runs threads may begin or cease to spin."""
        if self._policy and self._watch.age_s >= REVIEW_S:
            self._review()
        with self._lock:
            graph = self._graph = self._graph or self._open_graph()
            self._running += 1
        try:
            graph.run_with_iobinding(session.binding(graph))
        finally:
            with self._lock:
                self._running -= 1

    def _wanted(self) -> bool:
        assert self._policy is not None
        others = self._watch.others()
        return self._policy.wanted(others, spinning=self.spinning, now_s=time.monotonic())

    def _review(self) -> None:
        """Load the graph anew if threads should spin and do not, or the reverse; caches stay as they are."""
        with self._lock:
            # Another thread may have looked just before; and what is on the disk must be what was verified.
            if self._watch.age_s < REVIEW_S or self._running or self._files != self._file_stamps():
                return
            wanted = self._wanted()
            if wanted == self.spinning:
                return
            self.spinning = wanted
            # First let go of the old one: twice the weights might not fit.
            for session in self._sessions:
                session.unbind()
            self._graph = None

    def _file_stamps(self) -> list[tuple[int, int, int]]:
        """Return what changes when a file of the graph is written or replaced."""
        stats = [path.stat() for path in sorted(self._path.parent.glob(f"{GRAPH_FILE}*"))]
        return [(stat.st_ino, stat.st_size, stat.st_mtime_ns) for stat in stats]

    def _open_graph(self) -> Any:
        # Deferred: training code imports this package, and `--help` must be fast.
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = self.threads.count
        options.inter_op_num_threads = 1
        options.log_severity_level = 3  # errors; warnings about devices are not the user's concern
        # An arena keeps the memory of the longest chunk for ever, a pattern one block for each length of it.
        options.enable_cpu_mem_arena = options.enable_mem_pattern = False
        options.add_session_config_entry("session.intra_op.allow_spinning", str(int(self.spinning)))
        options.add_session_config_entry("session.intra_op.spin_duration_us", str(SPIN_US))
        before = private_ranges()
        try:
            graph = onnxruntime.InferenceSession(
                str(self._path), options, providers=["CPUExecutionProvider"], enable_fallback=0
            )
        except Exception as error:  # onnxruntime's own classes share no other base
            cause = " ".join(str(error).split())
            raise BundleError(f"{self._path}: does not load ({cause}); export the bundle again") from error
        gather_behind(graph, before)
        self.table = file_ranges(self._path.with_name(f"{GRAPH_FILE}.data"))
        return graph


class Session:
    """One cache on an engine, for one thread at a time. Feed it ids, get logits."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.context, self.vocabulary = engine.context, engine.vocabulary
        self._tokens: list[int] = []
        # onnxruntime reads and writes these arrays in place; they must live as long as the binding.
        self._ids = np.zeros((1, CHUNK_TOKENS), np.int64)
        self._mask = np.ones((1, self.context), np.int64)
        self._keep = np.zeros((), np.int64)
        self._logits = np.zeros((1, 1, self.vocabulary), np.float32)
        names = [name for name in engine.inputs if name.startswith("past_key_values.")]
        _, kv_heads, _, head_width = engine.inputs[names[0]]
        shape = len(names), 1, int(kv_heads), self.context, int(head_width)
        self._cache = dict(zip(names, unfilled(shape), strict=True))
        # What the next run reads and writes beside the cache; asking NumPy for an address takes a while.
        self._ids_address, self._mask_address = address(self._ids), address(self._mask)
        self._next: dict[str, Place] = {}
        if engine.keeps_any_logits:
            self._next[KEEP_INPUT] = address(self._keep), ()
        self._binding: Any = None
        self._bound: dict[str, Place] = {}

    @classmethod
    def open(cls, folder: Path, *, threads: int | None = None, spinning: bool | None = None) -> Session:
        """Return a session on an engine of its own; see `Engine.open`."""
        return Engine.open(folder, threads=threads, spinning=spinning).session()

    @property
    def tokens(self) -> Sequence[int]:
        """The ids in the cache, in order."""
        return self._tokens

    @property
    def position(self) -> int:
        """The number of ids in the cache."""
        return len(self._tokens)

    @property
    def cache_bytes(self) -> int:
        """The size of the cache when the context is full; less is held before."""
        return sum(buffer.nbytes for buffer in self._cache.values())

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
        self._check(ids)
        for begin in range(0, len(ids), CHUNK_TOKENS):
            self._run(ids[begin : begin + CHUNK_TOKENS], self._logits)
        return self._logits.reshape(-1).copy()

    def feed_each(
        self, ids: Sequence[int], out: npt.NDArray[np.float32] | None = None
    ) -> npt.NDArray[np.float32]:
        """Append `ids` to the cache and return the logits (T, V) after each of them; errors as in `feed`.

        They are written into `out` (at least T, V), if it is given.
        """
        self._check(ids)
        rows = np.empty((len(ids), self.vocabulary), np.float32) if out is None else out[: len(ids)]
        logits = rows[np.newaxis]
        pieces = [slice(begin, begin + CHUNK_TOKENS) for begin in range(0, len(ids), CHUNK_TOKENS)]
        for piece in pieces:
            part = logits[:, piece]
            if self.engine.keeps_any_logits or part.shape[1] == 1:
                self._run(ids[piece], part)
            else:
                for place, token in enumerate(ids[piece]):
                    self._run([token], part[:, place : place + 1])
        return rows

    def unbind(self) -> None:
        """Let go of the engine's graph; the next run binds anew. The cache stays."""
        self._binding = None

    def binding(self, graph: Any) -> Any:
        """Return what the next run reads and writes, bound to `graph`."""
        if self._binding is None:
            self._binding, self._bound = graph.io_binding(), {}
            for name, buffer in self._cache.items():
                place = address(buffer), buffer.shape
                self._rebind(name, place)
                self._rebind(name.replace("past_key_values", "present"), place)
        for name, place in self._next.items():
            self._rebind(name, place)
        return self._binding

    def _check(self, ids: Sequence[int]) -> None:
        total = self.position + len(ids)
        if len(ids) == 0:
            raise ValueError("feed needs at least one id")
        if total > self.context:
            raise ValueError(f"{total} ids do not fit a context of {self.context}")
        if not 0 <= min(ids) <= max(ids) < self.vocabulary:
            raise ValueError(f"ids must be in [0, {self.vocabulary}), got {min(ids)} to {max(ids)}")

    def _run(self, ids: Sequence[int], logits: npt.NDArray[np.float32]) -> None:
        """Compute one chunk into `logits` (1, kept, V), the last positions of it."""
        count = len(ids)
        self._ids[0, :count] = ids
        self._keep[()] = logits.shape[1]
        self._next["input_ids"] = self._ids_address, (1, count)
        self._next["attention_mask"] = self._mask_address, (1, self.position + count)
        self._next["logits"] = address(logits), logits.shape
        self.engine.run(self)
        if count > 1:
            let_go(self.engine.table)
        # Only now: a Ctrl-C before this line leaves the cache as it was.
        self._tokens.extend(ids)

    def _rebind(self, name: str, place: Place) -> None:
        """Bind the array at `place` unless it is bound already; so a step binds nothing but the mask."""
        if self._bound.get(name) == place:
            return
        output = name == "logits" or name.startswith("present.")
        bind = self._binding.bind_output if output else self._binding.bind_input
        type_ = np.int64 if name in INTEGERS else np.float32
        bind(name, "cpu", 0, type_, place[1], place[0])
        self._bound[name] = place
