"""The reference graph: the checkpoint as plain fp32 ONNX through optimum, and its distance from PyTorch.

It proves that the model survives the way to ONNX. What is shipped is the device graph, with its own proof.

optimum traces a twin of the model whose vocabulary and feed-forward are narrow, because the graph has the
same nodes whatever these are; then every initializer is pointed at its tensor in the checkpoint's own
model.safetensors. So the weights are those of the checkpoint byte for byte, and 0.4 B parameters are traced
in seconds with little memory: tracing the model itself takes four copies of its weights.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from numpy.typing import NDArray

from mothertongue.errors import CheckpointError
from mothertongue_export.checkpoint import WEIGHTS_FILE, Architecture, Checkpoint, tensor_places
from mothertongue_export.pytorch import PyTorchModel, quiet

TASK = "text-generation-with-past"
REFERENCE_FILE = "model.onnx"
NARROW = {"vocab_size": 16, "intermediate_size": 16}
SEQUENCE_TOKENS = 12
BATCHES = (1, 2)
SEED = 0  # of the random ids that are compared


def write_reference(checkpoint: Checkpoint, folder: Path) -> Path:
    """Write the fp32 graph of `checkpoint` into `folder`, complete with tokenizer, and return its path.

    Raises:
        CheckpointError: a tensor of the checkpoint has no place in the traced graph.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with quiet():
        from optimum.exporters.onnx import onnx_export_from_model
        from transformers import Qwen3Config, Qwen3ForCausalLM

        config = Qwen3Config.from_pretrained(checkpoint.folder, local_files_only=True)
        config.update({**NARROW, "pad_token_id": None, "bos_token_id": None, "eos_token_id": None})
        network: Any = Qwen3ForCausalLM  # carries no annotations
        twin = network(config).eval()
        for parameter in twin.parameters():  # tensors that are equal would become one initializer
            parameter.data.normal_()
        # Folding would transpose weights into copies that are no tensor of the checkpoint. And optimum's own
        # validation only warns: `reference_max_abs` measures and the gate decides.
        onnx_export_from_model(
            twin, folder, task=TASK, device="cpu", do_validation=False, do_constant_folding=False
        )
    shutil.copyfile(checkpoint.folder / WEIGHTS_FILE, folder / WEIGHTS_FILE)
    _point_at_weights(folder / REFERENCE_FILE, checkpoint)
    for path in checkpoint.folder.glob("*.json"):
        if path.name != "training_state.json":
            shutil.copyfile(path, folder / path.name)
    return folder / REFERENCE_FILE


def _point_at_weights(path: Path, checkpoint: Checkpoint) -> None:
    """Let every initializer of the graph at `path` be the tensor of its name in model.safetensors."""
    model = onnx.load(path)
    places = tensor_places(path.parent / WEIGHTS_FILE)
    pointed = set()
    for tensor in model.graph.initializer:
        if tensor.name not in places:
            continue
        begin, end = places[tensor.name]
        shape = checkpoint.weights[tensor.name].shape
        pointed.add(tensor.name)
        tensor.CopyFrom(onnx.TensorProto(name=tensor.name, dims=shape, data_type=onnx.TensorProto.FLOAT))
        tensor.data_location = onnx.TensorProto.EXTERNAL
        for key, value in {"location": WEIGHTS_FILE, "offset": begin, "length": end - begin}.items():
            tensor.external_data.add(key=key, value=str(value))
    if missing := sorted(set(checkpoint.weights) - pointed):
        raise CheckpointError(f"{checkpoint.folder}: {missing[0]} has no place in the graph of optimum")
    for value in model.graph.output:
        if value.name == "logits":
            value.type.tensor_type.shape.dim[2].dim_value = checkpoint.architecture.vocabulary
    del model.graph.value_info[:]  # shapes of the narrow twin
    path.write_bytes(model.SerializeToString())


def reference_max_abs(model: PyTorchModel, path: Path, sizes: Architecture) -> float:
    """Return the largest absolute logit difference between the graph at `path` and PyTorch.

    Every position is compared, for each batch size, with 0, 1 and all but one of the tokens in the cache.
    """
    options = onnxruntime.SessionOptions()
    options.enable_cpu_mem_arena = False
    # Neither a transposed nor a packed copy of the weights: slower, and 3 GB less at 0.4 B parameters.
    options.add_session_config_entry("session.disable_prepacking", "1")
    session = onnxruntime.InferenceSession(
        str(path), options, providers=["CPUExecutionProvider"], disabled_optimizers=["ConstantFolding"]
    )
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
