"""The plain forward against transformers, which shares no code with it."""

import re

import pytest
import torch
import transformers

from mothertongue_arbiter.torch.reference.plain_forward import architecture_of, plain_forward, weight_names

SIZES = {
    "vocab_size": 40,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-3,
    "rope_theta": 500.0,
}


@pytest.mark.parametrize(
    ("kind", "more"),
    [
        ("llama", {"tie_word_embeddings": True}),
        ("llama", {"attention_bias": True, "mlp_bias": True}),
        ("qwen2", {}),
        ("qwen3", {"head_dim": 16}),
        ("mistral", {"sliding_window": None, "num_key_value_heads": 1}),
    ],
)
def test_it_equals_transformers(kind, more):
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(kind, **(SIZES | more))
    config._attn_implementation = "eager"
    model = transformers.AutoModelForCausalLM.from_config(config).double().eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    ids = torch.randint(40, (2, 9))
    seen = torch.ones(9, 9, dtype=torch.bool).tril().expand(2, 9, 9)
    shape = architecture_of(SIZES | more | {"model_type": kind})
    weights = dict(model.named_parameters(remove_duplicate=False))
    with torch.no_grad():
        logits, trace = plain_forward(ids, weights, shape, seen=seen, positions=torch.arange(9).expand(2, 9))
        expected = model(ids, output_hidden_states=True, use_cache=False)
    # transformers makes its rotary tables and its norms in float32.
    assert float((logits - expected.logits).abs().max() / expected.logits.abs().max()) < 1e-5
    torch.testing.assert_close(trace["model.layers.0"], expected.hidden_states[1], atol=1e-5, rtol=1e-5)
    needed, possible = weight_names(shape)
    assert set(needed) <= set(weights) <= set(needed) | set(possible) | {"lm_head.weight"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rope_theta": None}, "no rope_theta"),
        ({"model_type": "gpt2"}, "another kind of decoder (model_type)"),
        ({"hidden_act": "gelu"}, "another kind of decoder (hidden_act)"),
        ({"rope_scaling": {"rope_type": "yarn"}}, "another kind of decoder (rope_type)"),
        ({"sliding_window": 4}, "another kind of decoder (sliding_window)"),
    ],
)
def test_what_it_is_not_is_said(change, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        architecture_of(SIZES | change)
