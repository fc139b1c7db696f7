"""Each engine behind one call: `generate(ids, count)`, greedy, past any end of text, each token timed.

Imported in the environment of the engine, so only numpy and the standard library at the top. Every engine
gets the number of threads explicitly; everything else is its own default.
"""

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np

CONTEXT_TOKENS = 2048  # what each engine is opened for


@dataclass
class Written:
    """The tokens that an engine wrote, and when."""

    start_s: float = field(default_factory=time.perf_counter)  # the prompt was handed over
    tokens: list[int] = field(default_factory=list)
    times_s: list[float] = field(default_factory=list)  # one for each token

    def add(self, token: int) -> None:
        self.times_s.append(time.perf_counter())
        self.tokens.append(int(token))

    @property
    def first_s(self) -> float:
        """The seconds from the prompt to the first token."""
        return self.times_s[0] - self.start_s

    @property
    def tokens_per_s(self) -> float:
        """How fast the tokens after the first came."""
        return (len(self.times_s) - 1) / (self.times_s[-1] - self.times_s[0])


class Engine(Protocol):
    def generate(self, ids: Sequence[int], count: int) -> Written: ...


class Mothertongue:
    """Our bundle through our runtime; `threads` None is what a user gets who sets nothing."""

    def __init__(self, path: Path, threads: int | None) -> None:
        from mothertongue import Sampling, load
        from mothertongue.sampling import sample

        self._model = load(path, threads=threads)
        self._session = self._model.engine.session()
        greedy, rng = Sampling(), np.random.default_rng(0)
        self._choose: Callable[[Any], int] = lambda logits: sample(logits, greedy, rng)

    def generate(self, ids: Sequence[int], count: int) -> Written:
        self._session.reset()
        written = Written()
        written.add(self._choose(self._session.feed(ids)))
        while len(written.tokens) < count:
            written.add(self._choose(self._session.feed(written.tokens[-1:])))
        return written

    def settings(self) -> dict[str, Any]:
        engine = self._model.engine
        return {
            "threads": engine.threads.count,
            "because": engine.threads.reason,
            "spinning": engine.spinning,
        }


class LlamaCpp:
    """A GGUF file through the C interface, as llama-bench does; the Python class above it would cost time."""

    def __init__(self, path: Path, threads: int | None) -> None:
        import llama_cpp

        assert threads
        self._llama = llama_cpp
        llama_cpp.llama_backend_init()
        self._model = llama_cpp.llama_model_load_from_file(
            str(path).encode(), llama_cpp.llama_model_default_params()
        )
        settings = llama_cpp.llama_context_default_params()
        settings.n_ctx, settings.n_threads, settings.n_threads_batch = CONTEXT_TOKENS, threads, threads
        self._context = llama_cpp.llama_init_from_model(self._model, settings)
        if not self._context:
            raise RuntimeError(f"llama.cpp does not load {path}")
        self._memory = llama_cpp.llama_get_memory(self._context)
        vocabulary = llama_cpp.llama_model_get_vocab(self._model)
        self._vocabulary = llama_cpp.llama_vocab_n_tokens(vocabulary)

    def generate(self, ids: Sequence[int], count: int) -> Written:
        self._llama.llama_memory_clear(self._memory, False)
        written = Written()
        written.add(self._next(ids))
        while len(written.tokens) < count:
            written.add(self._next(written.tokens[-1:]))
        return written

    def _next(self, ids: Sequence[int]) -> int:
        array = (self._llama.llama_token * len(ids))(*ids)  # the batch only points at it
        batch = self._llama.llama_batch_get_one(array, len(ids))
        if (status := self._llama.llama_decode(self._context, batch)) != 0:
            raise RuntimeError(f"llama_decode answered {status}")
        logits = self._llama.llama_get_logits_ith(self._context, -1)
        return int(np.ctypeslib.as_array(logits, shape=(self._vocabulary,)).argmax())

    def settings(self) -> dict[str, Any]:
        return {"system": self._llama.llama_print_system_info().decode()}


class Genai:
    """A folder with a genai_config.json through onnxruntime-genai."""

    def __init__(self, path: Path, threads: int | None) -> None:
        import onnxruntime_genai

        self._genai = onnxruntime_genai
        config = onnxruntime_genai.Config(str(path))
        options = {"intra_op_num_threads": threads, "inter_op_num_threads": 1}
        config.overlay(json.dumps({"model": {"decoder": {"session_options": options}}}))
        self._model = onnxruntime_genai.Model(config)

    def generate(self, ids: Sequence[int], count: int) -> Written:
        length = len(ids) + count
        parameters = self._genai.GeneratorParams(self._model)
        parameters.set_search_options(max_length=length, min_length=length, do_sample=False)
        generator = self._genai.Generator(self._model, parameters)
        prompt = np.asarray(ids, np.int32)
        written = Written()
        generator.append_tokens(prompt)
        while len(written.tokens) < count:
            generator.generate_next_token()
            written.add(generator.get_next_tokens()[0])
        return written

    def settings(self) -> dict[str, Any]:
        return {}


class CTranslate2:
    """A converted folder through CTranslate2, whose tokens are strings."""

    def __init__(self, path: Path, threads: int | None) -> None:
        import ctranslate2

        self._generator = ctranslate2.Generator(
            str(path), device="cpu", compute_type="int8", inter_threads=1, intra_threads=threads
        )
        self._spelling = json.loads((path / "vocabulary.json").read_text(encoding="utf-8"))

    def generate(self, ids: Sequence[int], count: int) -> Written:
        prompt = [self._spelling[token] for token in ids]
        written = Written()
        self._generator.generate_batch(
            [prompt],
            max_length=count,
            min_length=count,
            include_prompt_in_result=False,
            callback=lambda step: written.add(step.token_id),  # None: go on
        )
        return written

    def settings(self) -> dict[str, Any]:
        return {}


ENGINES: dict[str, Callable[[Path, int | None], Any]] = {
    "mothertongue": Mothertongue,
    "llamacpp": LlamaCpp,
    "genai": Genai,
    "ctranslate2": CTranslate2,
}
