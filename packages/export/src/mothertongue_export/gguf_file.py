"""A checkpoint as one GGUF file, for llama.cpp and what is built on it; read back before it is kept.

Matrices are stored in the type that is asked for, norms in float32, as llama.cpp's own converter does.
Tensors go to the file one by one, so that a large model takes the memory of its largest matrix.
"""

from __future__ import annotations

import errno
import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from mothertongue.errors import CheckFailed, MothertongueError
from mothertongue.tokenizer import BOS, END, PAD
from mothertongue_export.checkpoint import Architecture, Checkpoint
from mothertongue_export.gguf_tokenizer import GgufTokenizer, read_gguf_tokenizer

Storage = Literal["Q8_0", "F16", "F32"]
STORAGES: tuple[Storage, ...] = ("Q8_0", "F16")  # what an export writes
ARCHITECTURE = "qwen3"
REQUIREMENT = "gguf>=0.17,<0.20"
Q8_0_BLOCK = 32  # weights that share a scale
Q8_0_LEVELS = 127
FLOAT16_RELATIVE, FLOAT16_ABSOLUTE = 2.0**-11, 2.0**-25  # half a unit in the last place; below 2^-14

# Hugging Face's names and llama.cpp's (gguf.MODEL_TENSORS of QWEN3).
MODEL_NAMES = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",  # absent where the embedding is the head
}
LAYER_NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def require_gguf() -> None:
    """Raise MothertongueError, with the line that installs it, where the package `gguf` is missing."""
    if importlib.util.find_spec("gguf") is None:
        raise MothertongueError(
            f"the package gguf is not installed; install it with: pip install '{REQUIREMENT}'"
        )


def write_gguf(checkpoint: Checkpoint, path: Path, *, storage: Storage, name: str) -> None:
    """Write `checkpoint` as the GGUF file `path`, its matrices stored as `storage`, and read it back.

    `name` is what programs show. The same checkpoint gives the same bytes.

    Raises:
        MothertongueError: the package gguf is missing.
        CheckpointError: llama.cpp has no such tokenizer.
        CheckFailed: what is read back is not what was written, within the rounding of `storage`.
        OSError: the file cannot be written.
    """
    require_gguf()
    tokenizer = read_gguf_tokenizer(checkpoint.folder, checkpoint.architecture.vocabulary)
    try:
        _write(checkpoint, tokenizer, path, storage, name)
    except OSError as error:
        if error.errno is None:  # as numpy reports what it could not write to the end
            raise OSError(errno.ENOSPC, "No space left on device", str(path)) from error
        raise
    if problem := next(_problems(checkpoint, tokenizer, path, storage), None):
        raise CheckFailed(f"{path.name}: {problem}; the file is not kept, report this")


def _write(checkpoint: Checkpoint, tokenizer: GgufTokenizer, path: Path, storage: Storage, name: str) -> None:
    import gguf

    writer = gguf.GGUFWriter(path, ARCHITECTURE)
    try:
        writer.add_name(name)
        writer.add_file_type(
            {
                "Q8_0": gguf.LlamaFileType.MOSTLY_Q8_0,
                "F16": gguf.LlamaFileType.MOSTLY_F16,
                "F32": gguf.LlamaFileType.ALL_F32,
            }[storage]
        )
        writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
        _add_sizes(writer, checkpoint.architecture)
        _add_tokenizer(writer, tokenizer)
        for theirs, weight in _tensors(checkpoint):
            kind = gguf.GGMLQuantizationType[stored_as(weight, storage)]
            blocks, block_bytes = (
                weight.size // gguf.GGML_QUANT_SIZES[kind][0],
                gguf.GGML_QUANT_SIZES[kind][1],
            )
            writer.add_tensor_info(theirs, weight.shape, weight.dtype, blocks * block_bytes, raw_dtype=kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        for _, weight in _tensors(checkpoint):
            kind = gguf.GGMLQuantizationType[stored_as(weight, storage)]
            writer.write_tensor_data(gguf.quantize(weight, kind))
    finally:
        writer.close()


def stored_as(weight: NDArray[np.float32], storage: Storage) -> Storage:
    """Return how `weight` is stored: norms as float32, a matrix whose rows no block divides as float16."""
    if weight.ndim == 1:
        return "F32"
    if storage == "Q8_0" and weight.shape[-1] % Q8_0_BLOCK:
        return "F16"
    return storage


def tensor_name(ours: str) -> str:
    """Return llama.cpp's name for a tensor of a checkpoint."""
    if ours in MODEL_NAMES:
        return MODEL_NAMES[ours]
    number, part = ours.removeprefix("model.layers.").removesuffix(".weight").split(".", 1)
    return f"blk.{number}.{LAYER_NAMES[part]}.weight"


def _tensors(checkpoint: Checkpoint) -> Iterator[tuple[str, NDArray[np.float32]]]:
    for ours in checkpoint.architecture.shapes():
        yield tensor_name(ours), checkpoint.weights[ours]


def _add_sizes(writer: Any, sizes: Architecture) -> None:
    writer.add_context_length(sizes.context)
    writer.add_embedding_length(sizes.width)
    writer.add_block_count(sizes.layers)
    writer.add_feed_forward_length(sizes.ffn_width)
    writer.add_head_count(sizes.heads)
    writer.add_head_count_kv(sizes.kv_heads)
    writer.add_key_length(sizes.head_width)
    writer.add_value_length(sizes.head_width)
    writer.add_rope_freq_base(sizes.rope_theta)
    writer.add_layer_norm_rms_eps(sizes.rms_norm_eps)
    writer.add_vocab_size(sizes.vocabulary)


def _add_tokenizer(writer: Any, tokenizer: GgufTokenizer) -> None:
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(tokenizer.pre)
    writer.add_token_list(tokenizer.tokens)
    writer.add_token_types(tokenizer.types)
    writer.add_token_merges(tokenizer.merges)
    writer.add_bos_token_id(tokenizer.id(BOS))
    writer.add_eos_token_id(tokenizer.id(END))
    writer.add_pad_token_id(tokenizer.id(PAD))
    # As the runtime: prose begins with one beginning-of-text. A chat template that writes it too does not
    # double it, because llama.cpp takes one of them away.
    writer.add_add_bos_token(True)
    writer.add_chat_template(tokenizer.chat_template)


def _problems(
    checkpoint: Checkpoint, tokenizer: GgufTokenizer, path: Path, storage: Storage
) -> Iterator[str]:
    """Yield how the file at `path` differs from what it was made of."""
    import gguf

    reader = gguf.GGUFReader(path)
    for key, expected in (
        ("tokenizer.ggml.tokens", tokenizer.tokens),
        ("tokenizer.ggml.merges", tokenizer.merges),
        ("tokenizer.ggml.token_type", tokenizer.types),
        ("tokenizer.chat_template", tokenizer.chat_template),
    ):
        if reader.fields[key].contents() != expected:
            yield f"{key} is not what was written"
    stored = {tensor.name: tensor for tensor in reader.tensors}
    sources = dict(_tensors(checkpoint))
    if stored.keys() != sources.keys():
        yield f"holds {', '.join(sorted(stored.keys() ^ sources.keys()))} too many or too few"
    for theirs, weight in sources.items():
        found = gguf.dequantize(stored[theirs].data, stored[theirs].tensor_type).reshape(weight.shape)
        error, allowed = np.abs(found - weight), rounding_bound(weight, stored_as(weight, storage))
        if not (error <= allowed).all():  # NaN included
            yield f"{theirs} is off by up to {error.max():.3g}, more than {storage} may round"


def rounding_bound(weight: NDArray[np.float32], storage: Storage) -> NDArray[np.float32]:
    """Return for each weight how far it may be from what `storage` keeps of it.

    Q8_0 rounds a weight to a multiple of its block's largest magnitude / 127, a step that is itself rounded
    to float16 and taken up to 127 times.
    """
    size = np.abs(weight)
    if storage == "F32":
        return np.zeros_like(size)
    if storage == "F16":
        return np.asarray(size * FLOAT16_RELATIVE + FLOAT16_ABSOLUTE, np.float32)
    step = size.reshape(*size.shape[:-1], -1, Q8_0_BLOCK).max(axis=-1) / Q8_0_LEVELS
    bound = step / 2 + Q8_0_LEVELS * (step * FLOAT16_RELATIVE + FLOAT16_ABSOLUTE)
    # A hundred thousandth for the float32 arithmetic of whoever rounds and reads.
    return np.asarray(np.repeat(bound, Q8_0_BLOCK, axis=-1) * (1 + 1e-5), np.float32)
