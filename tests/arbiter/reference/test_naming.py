import pytest

from mothertongue_arbiter.torch.reference.naming import own_names

THEIRS = [
    "model.embed_tokens.weight",
    "model.layers.0.input_layernorm.weight",
    "model.layers.0.self_attn.q_proj.weight",
    "model.layers.0.mlp.gate_proj.weight",
]


@pytest.mark.parametrize(
    "ours",
    [
        ["model.embed_tokens.weight", *THEIRS[1:]],
        [
            "tok_embeddings.weight",
            "layers.0.attention_norm.weight",
            "layers.0.attention.wq.weight",
            "layers.0.ffn.w1.weight",
        ],
        ["embedding.weight", "blocks.0.attention_norm", "blocks.0.q.weight", "blocks.0.gate.weight"],
        ["emb.weight", "h.0.norm1.gain", "h.0.attn.query.weight", "h.0.mlp.w_gate.weight"],
    ],
)
def test_names_that_say_what_they_are_need_no_help(ours):
    assert own_names(THEIRS, ours) == dict(zip(THEIRS, ours, strict=True))


def test_given_names_are_believed_layer_by_layer():
    given = {"model.layers.{layer}.self_attn.q_proj.weight": "stack.{layer}.mystery"}
    assert own_names(THEIRS, ["stack.0.mystery"], given) == {THEIRS[2]: "stack.0.mystery"}


def test_two_candidates_are_none():
    ours = ["blocks.0.attn.q.weight", "blocks.0.cross.q.weight"]
    assert own_names(THEIRS, ours) == {}
