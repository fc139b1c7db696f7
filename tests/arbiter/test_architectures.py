"""Healthy models of transformers, tiny and random, with padding, must pass; they do much that looks odd."""

import pytest
import torch
import transformers

from mothertongue_arbiter import Declared, Verdict, audit

VOCABULARY, PAD = 96, 0
SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "pad_token_id": PAD,
}
GPT = {"vocab_size": VOCABULARY, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}
MPT = {"vocab_size": VOCABULARY, "d_model": 32, "n_layers": 2, "n_heads": 4, "max_seq_len": 64}
WINDOW = {"head_dim": 8, "query_pre_attn_scalar": 8, "sliding_window": 4}
ARCHITECTURES = {
    "llama": (SIZES, "relative"),
    "qwen3": (SIZES | {"head_dim": 8}, "relative"),  # norms of queries and keys in float32
    "gemma3_text": (SIZES | WINDOW, "relative"),  # scaled embeddings, windows, capped logits
    "mixtral": (SIZES | {"num_local_experts": 4}, "relative"),  # a router with kinks
    "falcon": (SIZES, "relative"),
    "gpt2": (GPT, "absolute"),  # dropout
    "mpt": (MPT | {"expansion_ratio": 2}, "relative"),  # masks of very negative numbers
    "bloom": (SIZES | {"n_layer": 2, "n_head": 4}, "relative"),
    "mamba": ({"vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": 2, "state_size": 4}, None),
}


class HuggingFaceRun:
    padding_learns = False

    def __init__(self, kind):
        values, positions = ARCHITECTURES[kind]
        torch.manual_seed(0)
        config = transformers.AutoConfig.for_model(kind, **values)
        self.model = transformers.AutoModelForCausalLM.from_config(config).train()
        self.left = positions != "absolute"  # gpt2 counts positions over padding
        self.declared = Declared(vocabulary=VOCABULARY, positions=positions, pad_token=PAD, supervised="some")

    def batch(self, step):
        generator = torch.Generator().manual_seed(step)
        ids = torch.randint(3, VOCABULARY, (3, 12), generator=generator)
        ids[0, 9:] = PAD
        if self.left:
            ids[1, :2] = PAD
        mask = (ids != PAD).long()
        labels = ids.masked_fill(mask == 0, -100)
        if self.left and not self.padding_learns:
            labels[1, 2] = -100  # else the last padding learns it
        return {"input_ids": ids, "attention_mask": mask, "labels": labels}

    def forward(self, model, batch):
        given = {name: value for name, value in batch.items() if name != "labels"}
        return model(**given, use_cache=False).logits

    def loss(self, model, batch):
        return model(**batch, use_cache=False).loss


@pytest.mark.parametrize("kind", ARCHITECTURES)
def test_a_healthy_architecture_passes_in_true_float64(kind):
    certificate = audit(HuggingFaceRun(kind))
    assert certificate.verdict == Verdict.PASS, [c for c in certificate.checks if c.verdict != Verdict.PASS]
    asked = {check.name for check in certificate.checks}
    assert {"gradient values", "padding independence", "token influence", "table precision"} <= asked


def test_where_padding_learns_the_other_rows_are_judged():
    """In transformers the last padding before a text learns its first token, seeing nothing."""
    run = HuggingFaceRun("bloom")
    run.padding_learns = True
    answers = {check.name: check for check in audit(run).checks}
    assert answers["gradient values"].verdict == Verdict.PASS
    assert "rows [0, 2] only" in answers["gradient values"].evidence
    run.model.transformer.h[0].mlp.dense_4h_to_h.weight.register_hook(lambda gradient: gradient * 0.5)
    answers = {check.name: check for check in audit(run).checks}
    assert answers["gradient values"].verdict == Verdict.FAIL


def test_where_padding_learns_in_every_row_one_is_judged_without_it():
    run = HuggingFaceRun("bloom")
    run.padding_learns = True
    whole = run.batch
    run.batch = lambda step: {name: value[1:2] for name, value in whole(step).items()}
    answers = {check.name: check for check in audit(run).checks}
    assert answers["gradient values"].verdict == Verdict.PASS
    assert "row 0 without its padding only" in answers["gradient values"].evidence
    run.model.transformer.h[0].mlp.dense_4h_to_h.weight.register_hook(lambda gradient: gradient * 0.5)
    answers = {check.name: check for check in audit(run).checks}
    assert answers["gradient values"].verdict == Verdict.FAIL
