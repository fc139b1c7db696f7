"""Whose weight is whose: the Hugging Face names of a decoder, and the names that a program gave."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

# The last part of a name, without `.weight`, that says what a tensor is for. Only names that mean one thing.
MEANINGS = {
    "model.embed_tokens": "embed_tokens tok_embeddings embedding embeddings embed emb wte tok_emb "
    "token_embedding",
    "model.norm": "norm final_norm ln_f norm_f norm_out out_norm final_layernorm",
    "lm_head": "lm_head head output unembed unembedding",
    "model.layers.{layer}.input_layernorm": "input_layernorm attention_norm attn_norm norm1 norm_1 ln1 ln_1 "
    "norm_attn norm_attention",
    "model.layers.{layer}.post_attention_layernorm": "post_attention_layernorm ffn_norm mlp_norm norm2 "
    "norm_2 ln2 ln_2 norm_mlp norm_ffn",
    "model.layers.{layer}.self_attn.q_proj": "q_proj wq q query w_q to_q",
    "model.layers.{layer}.self_attn.k_proj": "k_proj wk k key w_k to_k",
    "model.layers.{layer}.self_attn.v_proj": "v_proj wv v value w_v to_v",
    "model.layers.{layer}.self_attn.o_proj": "o_proj wo o out_proj w_o",
    "model.layers.{layer}.self_attn.q_norm": "q_norm qnorm norm_q",
    "model.layers.{layer}.self_attn.k_norm": "k_norm knorm norm_k",
    "model.layers.{layer}.mlp.gate_proj": "gate_proj gate w_gate w1",
    "model.layers.{layer}.mlp.up_proj": "up_proj up w_up w3",
    "model.layers.{layer}.mlp.down_proj": "down_proj down w_down w2",
}
MEANING_OF = {word: name for name, words in MEANINGS.items() for word in words.split()}
WEIGHT = re.compile(r"\.(weight|gain|scale|gamma|g)$")


def own_names(
    theirs: Iterable[str], ours: Iterable[str], given: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Return, for each of the Hugging Face names `theirs` that has a partner among `ours`, that partner.

    `given` maps patterns with `{layer}` and is believed. Else the names are the same, or each says by
    itself what it is for.
    """
    theirs, ours = list(theirs), list(ours)
    if given:
        return {name: own for name in theirs if (own := _given(name, given)) in ours}
    if "model.embed_tokens.weight" in ours:
        return {name: name for name in theirs if name in ours}
    meant: dict[str, list[str]] = {}
    for own in ours:
        meant.setdefault(_meaning(own), []).append(own)
    return {name: meant[name][0] for name in theirs if len(meant.get(name, [])) == 1}


def _given(name: str, given: Mapping[str, str]) -> str:
    layer = re.search(r"\.layers\.(\d+)\.", name)
    number = layer.group(1) if layer else ""
    pattern = name.replace(f".layers.{number}.", ".layers.{layer}.") if layer else name
    return given.get(name, given.get(pattern, "")).replace("{layer}", number)


def _meaning(own: str) -> str:
    """Return the Hugging Face name that `own` stands for by what it says, or nothing."""
    kind = "bias" if own.endswith(".bias") else "weight"
    parts = WEIGHT.sub("", own.removesuffix(".bias")).lower().split(".")
    name = MEANING_OF.get(parts[-1], "")
    numbers = [part for part in parts[:-1] if part.isdigit()]
    if not name or len(numbers) != ("{layer}" in name):
        return ""
    return f"{name.replace('{layer}', ''.join(numbers))}.{kind}"
