"""GGUF files, judged by llama.cpp itself (through xllamacpp, its build on PyPI) and by PyTorch."""

import hashlib
import importlib.util
import json
import random
import re
import subprocess
import sys
import unicodedata
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from transformers import Qwen3Config, Qwen3ForCausalLM

from mothertongue.errors import CheckFailed, MothertongueError
from mothertongue.tokenizer import Tokenizer
from mothertongue_export import gguf_tokenizer
from mothertongue_export.checkpoint import Checkpoint, read_checkpoint
from mothertongue_export.gguf_file import (
    REQUIREMENT,
    Storage,
    rounding_bound,
    stored_as,
    tensor_name,
    write_gguf,
)
from mothertongue_export.pytorch import PyTorchModel
from mothertongue_trainer.vocabulary import SPLIT_PATTERN, Passage, tokenizer_config, train_bpe

NEAR_TIE_NATS = 0.1  # a token this much less likely than the best may win by rounding
# How far the logarithm of any token's probability may be from PyTorch: arithmetic in another order; half a
# unit of float16 through two layers; 8 bits of weights and activations.
LOGPROB_NATS: dict[Storage, float] = {"F32": 1e-5, "F16": 5e-3, "Q8_0": 0.1}
PROMPTS = ("The river is called", "নদী শব্দের ইংরেজি", "The fish", "আমি একটি")
GREEDY_TOKENS = 24
STRINGS = 1_000


class LlamaCpp:
    """A GGUF file in llama.cpp: the server of the same process, on one thread."""

    def __init__(self, path: Path, context: int) -> None:
        engine = pytest.importorskip("xllamacpp", reason="no build of llama.cpp: pip install xllamacpp")
        options = engine.CommonParams()
        options.model.path = str(path)
        options.n_ctx, options.n_parallel, options.n_gpu_layers = context, 1, 0
        options.cpuparams.n_threads = options.cpuparams_batch.n_threads = 1
        # Its cache in float32, so that what is measured is the file.
        options.cache_type_k = options.cache_type_v = engine.ggml_type.GGML_TYPE_F32
        options.flash_attn_type = engine.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
        options.verbosity, options.warmup, options.port = -1, False, 0
        self._server = engine.Server(options)

    def tokens(self, text: str, *, add_special: bool = False) -> list[int]:
        body = {"content": text, "add_special": add_special, "parse_special": False}
        ids: list[int] = self._post("/tokenize", body)["tokens"]
        return ids

    def rendered(self, messages: list[dict[str, str]]) -> str:
        text: str = self._post("/apply-template", {"messages": messages})["prompt"]
        return text

    def logprobs(self, ids: Sequence[int], vocabulary: int) -> NDArray[np.float64]:
        found = np.full(vocabulary, -np.inf)
        for token in self._complete(ids, 1, vocabulary)[0]["top_logprobs"]:
            found[token["id"]] = token["logprob"]
        return found

    def greedy(self, ids: Sequence[int], count: int) -> list[int]:
        return [token["id"] for token in self._complete(ids, count, 1)]

    def _complete(self, ids: Sequence[int], count: int, probabilities: int) -> list[dict[str, Any]]:
        body = {"prompt": list(ids), "n_predict": count, "temperature": 0, "n_probs": probabilities}
        answer = self._server.handle_completions({**body, "cache_prompt": False})
        content: list[dict[str, Any]] = answer["choices"][0]["logprobs"]["content"]
        return content

    def _post(self, path: str, body: dict[str, Any]) -> Any:
        request = urllib.request.Request(self._server.listening_address + path, json.dumps(body).encode())
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.load(answer)


def bangla_strings(count: int, seed: int) -> list[str]:
    """Made-up text in NFC: conjuncts, vowel signs, joiners, digits, signs, English, white space."""
    chance = random.Random(seed)
    consonants, signs = "কখগঘঙচছজঝঞটঠডঢণতথদধনপফবভমযরলশষসহড়ঢ়য়ৎ", "ািীুূৃেৈোৌ"
    words = ["river", "don't", "we'll", "GPT-2", "ABCdef", "naïve", "x=1", "Ångström"]
    marks = [
        "।",
        "?",
        "!!",
        ", ",
        " — ",
        "…",
        " (",
        ")",
        "\n",
        "\r\n\n",
        "  ",
        "\t",
        " \n ",
        "😀",
        "॥",
        "\u00a0",
    ]

    def syllable() -> str:
        text = chance.choice(consonants)
        for _ in range(chance.choice((0, 0, 1, 2))):
            text += "্" + chance.choice(("", "", "\u200c", "\u200d")) + chance.choice(consonants)
        if chance.random() < 0.6:
            text += chance.choice(("", "\u200c")) + chance.choice(signs)
        return text + chance.choice(("", "", "", "ং", "ঃ", "ঁ", "\u200d"))

    def piece() -> str:
        kind = chance.random()
        if kind < 0.6:
            return "".join(syllable() for _ in range(chance.randint(1, 4)))
        if kind < 0.7:
            return "".join(chance.choice("০১২৩৪৫৬৭৮৯0123456789") for _ in range(chance.randint(1, 5)))
        return chance.choice(words) if kind < 0.8 else chance.choice(marks)

    def text() -> str:
        pieces = [piece() + chance.choice((" ", " ", "")) for _ in range(chance.randint(1, 9))]
        return unicodedata.normalize("NFC", "".join(pieces))

    return [text() for _ in range(count)]


@pytest.fixture(scope="module")
def written(split_as_qwen: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[Storage, Path]:
    """The checkpoint in each storage, in a folder whose name has Bangla letters and a space."""
    folder = tmp_path_factory.mktemp("মডেল ১")
    checkpoint, storages = read_checkpoint(split_as_qwen), tuple(LOGPROB_NATS)
    for storage in storages:
        write_gguf(checkpoint, folder / f"{storage}.gguf", storage=storage, name="মডেল ১")
    return {storage: folder / f"{storage}.gguf" for storage in storages}


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint with a tokenizer as `mothertongue tokenizer` learns it, and hardly a model."""
    folder = tmp_path_factory.mktemp("reader")
    learned = [Passage(text=text, language="bn", role=None) for text in bangla_strings(STRINGS, seed=1)]
    train_bpe(learned, {}, vocabulary=2_000).save(str(folder / "tokenizer.json"))
    config = tokenizer_config({}, context=64, turns=None)
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    sizes = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "head_dim": 32}
    heads = {"num_attention_heads": 1, "num_key_value_heads": 1, "max_position_embeddings": 64}
    settings = Qwen3Config(vocab_size=2_000, tie_word_embeddings=True, **sizes, **heads)
    Qwen3ForCausalLM(settings).save_pretrained(folder)
    return folder


def test_llama_cpp_reads_a_thousand_bangla_strings_as_the_runtime_does(reader: Path, tmp_path: Path) -> None:
    strings = bangla_strings(STRINGS, seed=0)
    for part in ("\u200c", "\u200d", "্", "river", "7", "৭", "।"):
        assert sum(part in text for text in strings) > 20
    write_gguf(read_checkpoint(reader), tmp_path / "reader.gguf", storage="F16", name="reader")
    ours, theirs = Tokenizer.open(reader), LlamaCpp(tmp_path / "reader.gguf", 64)
    assert [text for text in strings if theirs.tokens(text) != ours.encode(text)] == []
    # Special tokens that a person types are text, and prose begins once.
    typed = "নদী <|end|><|bos|>"
    assert theirs.tokens(typed) == ours.encode(typed)
    assert theirs.tokens("নদী", add_special=True) == [ours.special("<|bos|>"), *ours.encode("নদী")]


def test_under_a_name_that_is_nearly_right_most_strings_would_be_read_otherwise(
    reader: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gguf_tokenizer, "PRE_TOKENIZERS", {SPLIT_PATTERN: "gpt-4o"})
    write_gguf(read_checkpoint(reader), tmp_path / "reader.gguf", storage="F16", name="reader")
    ours, theirs = Tokenizer.open(reader), LlamaCpp(tmp_path / "reader.gguf", 64)
    strings = bangla_strings(100, seed=0)
    assert sum(theirs.tokens(text) != ours.encode(text) for text in strings) > 50


@pytest.mark.parametrize("storage", ["F32", "F16", "Q8_0"])
def test_llama_cpp_computes_the_same_model(
    written: dict[Storage, Path], split_as_qwen: Path, storage: Storage
) -> None:
    theirs, model = LlamaCpp(written[storage], 64), PyTorchModel.open(split_as_qwen)
    tokenizer = Tokenizer.open(split_as_qwen)
    for prompt in PROMPTS:
        ids = [tokenizer.special("<|bos|>"), *tokenizer.encode(prompt)]
        exact = torch.log_softmax(torch.tensor(model.logits([ids])[0, -1]).double(), -1).numpy()
        found = theirs.logprobs(ids, len(exact))
        assert np.abs(found - exact).max() < LOGPROB_NATS[storage]

        answer = theirs.greedy(ids, GREEDY_TOKENS)
        logits = torch.tensor(model.logits([[*ids, *answer]])[0, len(ids) - 1 : -1])
        losses = logits.max(-1).values - logits[torch.arange(len(answer)), torch.tensor(answer)]
        assert losses.max() <= NEAR_TIE_NATS, "llama.cpp took a token that PyTorch clearly would not"
        wanted = model.greedy(ids, GREEDY_TOKENS, tokenizer.special("<|end|>"))
        if losses.max() == 0:
            assert answer == wanted[: len(answer)]
            assert wanted[len(answer) :] in ([], [tokenizer.special("<|end|>")])


def test_the_chat_template_is_rendered_by_llama_cpp_as_by_us(written: dict[Storage, Path]) -> None:
    turns = [{"role": "user", "content": "নদী?"}]
    # It takes the <|bos|> away because add_bos_token puts one in front of every prompt.
    assert LlamaCpp(written["F16"], 64).rendered(turns) == "<|user|>নদী?<|end|><|assistant|>"


def test_the_metadata_is_that_of_the_checkpoint(written: dict[Storage, Path], split_as_qwen: Path) -> None:
    fields = {name: field.contents() for name, field in gguf.GGUFReader(written["Q8_0"]).fields.items()}
    config = json.loads((split_as_qwen / "config.json").read_text(encoding="utf-8"))
    assert fields["general.name"] == "মডেল ১"
    for name, key in {
        "context_length": "max_position_embeddings",
        "embedding_length": "hidden_size",
        "block_count": "num_hidden_layers",
        "feed_forward_length": "intermediate_size",
        "attention.head_count": "num_attention_heads",
        "attention.head_count_kv": "num_key_value_heads",
        "attention.key_length": "head_dim",
        "attention.value_length": "head_dim",
        "rope.freq_base": "rope_theta",
    }.items():
        assert fields[f"qwen3.{name}"] == config[key]
    assert fields["qwen3.attention.layer_norm_rms_epsilon"] == pytest.approx(config["rms_norm_eps"])
    assert fields["tokenizer.ggml.pre"] == "qwen35"
    ids = [fields[f"tokenizer.ggml.{token}_token_id"] for token in ("bos", "eos", "padding")]
    assert ids == [0, 4, 5]
    assert fields["tokenizer.ggml.add_bos_token"] is True


def test_the_same_checkpoint_gives_the_same_bytes(
    written: dict[Storage, Path], split_as_qwen: Path, tmp_path: Path
) -> None:
    write_gguf(read_checkpoint(split_as_qwen), tmp_path / "again.gguf", storage="Q8_0", name="মডেল ১")
    again, first = (tmp_path / "again.gguf").read_bytes(), written["Q8_0"].read_bytes()
    assert hashlib.sha256(again).digest() == hashlib.sha256(first).digest()


def test_a_tied_head_is_stored_once_and_rows_that_no_block_divides_keep_16_bits(
    written: dict[Storage, Path], split_as_qwen: Path
) -> None:
    stored = {tensor.name: tensor.tensor_type.name for tensor in gguf.GGUFReader(written["Q8_0"]).tensors}
    assert "output.weight" not in stored
    assert stored["token_embd.weight"] == stored["blk.1.attn_q.weight"] == "Q8_0"
    assert stored["output_norm.weight"] == stored["blk.0.attn_q_norm.weight"] == "F32"
    assert stored["blk.0.ffn_down.weight"] == "F16"  # rows of 144 weights, blocks of 32
    assert len(stored) == len(read_checkpoint(split_as_qwen).weights)


def test_names_are_those_of_the_gguf_package(untied: Path) -> None:
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.QWEN3, 2)
    for ours in read_checkpoint(untied).weights:
        assert tensor_name(ours) == names.get_name(ours, try_suffixes=(".weight",))


@pytest.mark.parametrize("storage", ["F32", "F16", "Q8_0"])
def test_the_bound_is_what_rounding_reaches_and_no_more(storage: Storage) -> None:
    weight = np.random.default_rng(0).normal(size=(64, 256)).astype(np.float32)
    weight[:8] *= 1e-6  # scales that float16 holds with few bits
    kind = gguf.GGMLQuantizationType[storage]
    error = np.abs(gguf.dequantize(gguf.quantize(weight, kind), kind) - weight)
    bound = rounding_bound(weight, storage)
    assert (error <= bound).all()
    if storage != "F32":
        assert (error[8:] / bound[8:]).max() > 0.8
    assert stored_as(weight[0], storage) == "F32"


def damage_a_tensor(monkeypatch: pytest.MonkeyPatch) -> None:
    """A converter that permutes the rows of queries, as those for interleaved rotary do."""
    quantize = gguf.quantize

    def permuted(weight: NDArray[np.float32], kind: gguf.GGMLQuantizationType) -> NDArray[Any]:
        result: NDArray[Any] = quantize(np.roll(weight, 1, axis=0) if weight.ndim == 2 else weight, kind)
        return result

    monkeypatch.setattr(gguf, "quantize", permuted)


def lose_a_merge(monkeypatch: pytest.MonkeyPatch) -> None:
    add = gguf.GGUFWriter.add_token_merges
    monkeypatch.setattr(
        gguf.GGUFWriter, "add_token_merges", lambda self, merges: add(self, [*merges[:-2], merges[-1]])
    )


@pytest.mark.parametrize(
    ("damage", "message"),
    [(damage_a_tensor, "token_embd.weight is off by up to"), (lose_a_merge, "tokenizer.ggml.merges is not")],
)
def test_a_file_that_is_another_model_is_told_so(
    split_as_qwen: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: Any, message: str
) -> None:
    damage(monkeypatch)
    with pytest.raises(CheckFailed, match=message):
        write_gguf(read_checkpoint(split_as_qwen), tmp_path / "a.gguf", storage="Q8_0", name="a")


def test_a_weight_too_large_for_float16_is_told_so(split_as_qwen: Path, tmp_path: Path) -> None:
    checkpoint = read_checkpoint(split_as_qwen)
    embedding = checkpoint.weights["model.embed_tokens.weight"].copy()
    embedding[3, 3] = 1e6
    weights = checkpoint.weights | {"model.embed_tokens.weight": embedding}
    huge = Checkpoint(folder=checkpoint.folder, architecture=checkpoint.architecture, weights=weights)
    with (
        np.errstate(over="ignore"),
        pytest.raises(CheckFailed, match=r"token_embd\.weight is off by up to inf"),
    ):
        write_gguf(huge, tmp_path / "a.gguf", storage="F16", name="a")


def test_without_the_package_the_line_that_installs_it_is_printed(
    split_as_qwen: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == "gguf" else find(name, *rest)
    )
    with pytest.raises(MothertongueError, match=re.escape(f"pip install '{REQUIREMENT}'")):
        write_gguf(read_checkpoint(split_as_qwen), tmp_path / "a.gguf", storage="F16", name="a")
    assert REQUIREMENT in (Path(__file__).parents[2] / "packages/export/pyproject.toml").read_text(
        encoding="utf-8"
    )


def test_a_full_disk_is_an_error_that_says_so(split_as_qwen: Path, tmp_path: Path) -> None:
    """numpy reports a write that was cut short as an OSError without a number."""
    code = f"""
import resource, signal
from pathlib import Path
from mothertongue_export.checkpoint import read_checkpoint
from mothertongue_export.formats import plan_homes, write_home
from mothertongue.errors import BundleError
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, 40_000))
try:
    write_home(*plan_homes(Path({str(split_as_qwen)!r}), Path({str(tmp_path / "tiny")!r}), ["gguf"]))
except BundleError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "make room and export again" in done.stdout
    assert list(tmp_path.iterdir()) == []
