import json
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

from mothertongue_trainer.model import IGNORED, Qwen3, config_from_huggingface, huggingface_config
from mothertongue_trainer.recipe import ModelConfig

# Both sides compute in float32 with sums in another order; measured 1e-6 for logits of size 1.
FLOAT32_LOGITS = 1e-5
VOCABULARY = 300


def tiny(*, tied: bool = True, kv_heads: int = 2, context: int = 64) -> ModelConfig:
    return ModelConfig(
        layers=2, width=32, heads=4, kv_heads=kv_heads, head_width=16, ffn_width=48, context=context,
        tied_embeddings=tied,
    )  # fmt: skip


def some_model(config: ModelConfig) -> Qwen3:
    """A model whose logits are of size 1 and whose norms are not all 1."""
    model = Qwen3(config, VOCABULARY, seed=1)
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(5 if parameter.ndim == 2 else 1)
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))
    return model


def some_tokens(rows: int = 3, length: int = 40) -> torch.Tensor:
    return torch.randint(VOCABULARY, (rows, length), generator=torch.Generator().manual_seed(3))


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_logits_equal_those_of_transformers(tied: bool, kv_heads: int, tmp_path: Path) -> None:
    from transformers import AutoConfig, Qwen3ForCausalLM

    model = some_model(tiny(tied=tied, kv_heads=kv_heads))
    values = huggingface_config(model.config, VOCABULARY)
    (tmp_path / "config.json").write_text(json.dumps(values), encoding="utf-8")
    theirs = Qwen3ForCausalLM(AutoConfig.from_pretrained(tmp_path)).eval()
    missing, unexpected = theirs.load_state_dict(model.state_dict(), strict=False)
    assert not unexpected
    assert set(missing) <= {"lm_head.weight"} if tied else not missing
    with torch.no_grad():
        expected = theirs(some_tokens()).logits
        found = model(some_tokens())
    assert expected.std() > 0.5  # else the tolerance would say nothing
    torch.testing.assert_close(found, expected, atol=FLOAT32_LOGITS, rtol=0)


@pytest.mark.parametrize("tied", [True, False])
def test_weights_of_transformers_load_as_they_are(tied: bool) -> None:
    from transformers import Qwen3Config, Qwen3ForCausalLM

    values = huggingface_config(tiny(tied=tied), VOCABULARY)
    theirs = Qwen3ForCausalLM(Qwen3Config(**values)).eval()
    state = theirs.state_dict()
    if tied:
        state.pop("lm_head.weight")
    model = Qwen3(tiny(tied=tied), VOCABULARY)
    model.load_state_dict(state)
    with torch.no_grad():
        torch.testing.assert_close(
            model(some_tokens()), theirs(some_tokens()).logits, atol=FLOAT32_LOGITS, rtol=0
        )


def test_the_config_survives_the_way_through_hugging_face() -> None:
    for config in (tiny(), tiny(tied=False, kv_heads=1)):
        assert config_from_huggingface(huggingface_config(config, VOCABULARY)) == (config, VOCABULARY)


def test_a_document_packed_in_a_row_gives_the_logits_it_gives_alone() -> None:
    model, tokens = some_model(tiny()), some_tokens(rows=1)
    documents = torch.tensor([[1] * 11 + [2] * 20 + [3] * 9])
    with torch.no_grad():
        packed = model(tokens, documents)
        alone = torch.cat([model(part) for part in tokens.split([11, 20, 9], dim=1)], dim=1)
    torch.testing.assert_close(packed, alone, atol=FLOAT32_LOGITS, rtol=0)


def test_no_position_sees_a_later_one() -> None:
    model, tokens = some_model(tiny()), some_tokens(rows=1)
    changed = tokens.clone()
    changed[0, 25:] = (changed[0, 25:] + 1) % VOCABULARY
    documents = torch.ones_like(tokens)
    with torch.no_grad():
        for one in (None, documents):
            assert torch.equal(model(tokens, one)[:, :25], model(changed, one)[:, :25])
            assert not torch.equal(model(tokens, one)[:, 25:], model(changed, one)[:, 25:])


def test_the_loss_is_the_cross_entropy_of_all_logits_at_the_learned_positions() -> None:
    model, tokens = some_model(tiny()).double(), some_tokens()
    model.compute_dtype = torch.float64
    targets = some_tokens().roll(-1, 1)
    targets[:, ::3] = IGNORED
    documents = torch.arange(40).div(13, rounding_mode="floor").expand(3, 40)
    logits = model(tokens, documents).flatten(0, 1)
    expected = F.cross_entropy(logits, targets.flatten(), ignore_index=IGNORED, reduction="sum")
    torch.testing.assert_close(model.loss(tokens, targets, documents), expected)


def test_a_batch_in_which_nothing_is_learned_has_no_loss() -> None:
    loss = some_model(tiny()).loss(some_tokens(), torch.full((3, 40), IGNORED))
    assert loss.item() == 0


def test_bfloat16_products_leave_weights_and_gradients_in_float32() -> None:
    model = Qwen3(tiny(), VOCABULARY, compute_dtype=torch.bfloat16)
    loss = model.loss(some_tokens(), some_tokens().roll(-1, 1))
    loss.backward()
    assert loss.dtype == torch.float32
    assert {parameter.grad.dtype for parameter in model.parameters()} == {torch.float32}
    exact = Qwen3(tiny(), VOCABULARY).loss(some_tokens(), some_tokens().roll(-1, 1))
    assert loss.item() == pytest.approx(exact.item(), rel=1e-3)  # bfloat16 has 8 bits


def test_the_seed_decides_the_weights() -> None:
    one, same, other = (Qwen3(tiny(), VOCABULARY, seed=seed).state_dict() for seed in (1, 1, 2))
    assert all(torch.equal(one[name], same[name]) for name in one)
    assert not torch.equal(one["model.embed_tokens.weight"], other["model.embed_tokens.weight"])
