import importlib
import json
import sys

import pytest
import torch

pytest.importorskip("transformers")
from transformers import AutoConfig, AutoModelForCausalLM

from mothertongue_arbiter import audit
from mothertongue_arbiter.errors import ArbiterError
from mothertongue_arbiter.torch import causal_lm
from mothertongue_arbiter.torch.causal_lm import available_bytes, causal_lm_run, is_trained

SIZES = {
    "vocab_size": 96, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 24, "num_local_experts": 2,
    "n_embd": 32, "n_layer": 1, "n_head": 4, "n_positions": 24,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip


def config_of(kind, folder, **changed):
    config = AutoConfig.for_model(kind, **SIZES, **changed)
    config.save_pretrained(folder)
    return config


@pytest.mark.parametrize("kind", ["llama", "gpt2", "mixtral"])
def test_an_architecture_is_certified_from_its_config_alone(tmp_path, kind):
    config_of(kind, tmp_path)
    for path in (tmp_path, tmp_path / "config.json"):
        run = causal_lm_run(path)
        assert any("weights are random" in note for note in run.notes)
    certificate = audit(run)
    assert certificate.verdict == "PASS", [one for one in certificate.checks if one.verdict != "PASS"]
    assert {"gradient values", "labels", "causality"} <= {check.name for check in certificate.checks}


def test_a_fault_in_the_model_fails(tmp_path, monkeypatch):
    config_of("llama", tmp_path)
    run = causal_lm_run(tmp_path)
    run.model.model.layers[0].mlp.down_proj.weight.register_hook(lambda gradient: gradient * 0.5)
    check = next(one for one in audit(run).checks if one.name == "gradient values")
    assert check.findings[0].subject == "model.layers.0.mlp.down_proj.weight"


def test_the_weights_of_a_folder_are_the_ones_that_are_audited(tmp_path):
    model = AutoModelForCausalLM.from_config(config_of("llama", tmp_path))
    model.save_pretrained(tmp_path)
    run = causal_lm_run(tmp_path)
    assert is_trained(tmp_path)
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(dict(run.model.named_parameters())[name], parameter, rtol=0, atol=0)
    assert run.model.training
    assert run.notes == (causal_lm.RANDOM_ROWS,)


def test_weights_that_do_not_fill_the_model_are_refused(tmp_path):
    AutoModelForCausalLM.from_config(config_of("llama", tmp_path)).save_pretrained(tmp_path)
    config_of("llama", tmp_path, attention_bias=True)
    with pytest.raises(ArbiterError, match=r"4 tensors of the model are not in its weights"):
        causal_lm_run(tmp_path)


def test_pickled_weights_are_refused(tmp_path):
    config_of("llama", tmp_path)
    (tmp_path / "pytorch_model.bin").write_bytes(b"x")
    with pytest.raises(ArbiterError, match="pickled"):
        causal_lm_run(tmp_path)


def test_random_rows_hold_no_special_token_and_are_no_longer_than_the_model(tmp_path):
    config_of("llama", tmp_path)
    run = causal_lm_run(tmp_path)
    assert run.rows.shape[1] == 24
    assert run.rows.min() >= 3
    ids = [run.batch(step)["input_ids"] for step in (0, 8, 1)]
    assert torch.equal(ids[0], ids[1])
    assert not torch.equal(ids[0], ids[2])


def test_rotary_positions_are_declared_relative_and_handed_over(tmp_path):
    (tmp_path / "turned").mkdir()
    (tmp_path / "added").mkdir()
    config_of("llama", tmp_path / "turned")
    config_of("gpt2", tmp_path / "added")
    turned, added = causal_lm_run(tmp_path / "turned"), causal_lm_run(tmp_path / "added")
    assert (turned.declared.positions, added.declared.positions) == ("relative", None)
    assert turned.batch(0)["position_ids"].tolist()[0] == list(range(24))
    assert "position_ids" not in added.batch(0)


@pytest.mark.parametrize(
    ("stated", "said"),
    [
        ("{", "no JSON"),
        ("[]", "model_type None is not one"),
        ({"model_type": "lama"}, "did you mean 'llama'?"),
        ({"model_type": "t5"}, "t5 is no causal language model"),
        ({"model_type": "bert"}, "bert is an encoder"),
        ({"model_type": "llama", "hidden_size": "wide"}, "config.json: TypeError"),
    ],
)
def test_what_is_no_causal_language_model_is_refused_in_one_line(tmp_path, stated, said):
    text = stated if isinstance(stated, str) else json.dumps(stated)
    (tmp_path / "config.json").write_text(text, encoding="utf-8")
    with pytest.raises(ArbiterError) as failure:
        causal_lm_run(tmp_path)
    assert said in str(failure.value)
    assert "\n" not in str(failure.value)


def test_without_transformers_the_install_line_is_the_answer(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    monkeypatch.delitem(sys.modules, causal_lm.__name__)
    with pytest.raises(ArbiterError, match="pip install transformers"):
        importlib.import_module(causal_lm.__name__)


def test_a_name_on_the_hub_is_not_downloaded(tmp_path):
    with pytest.raises(ArbiterError, match="nothing is downloaded"):
        causal_lm_run(tmp_path / "someone" / "model")


def test_a_model_that_float64_does_not_fit_is_refused_before_it_is_built(tmp_path, monkeypatch):
    AutoConfig.for_model(
        "llama", num_hidden_layers=80, hidden_size=8192, intermediate_size=28672
    ).save_pretrained(tmp_path)
    monkeypatch.setattr(causal_lm, "_build", lambda *args, **kwargs: pytest.fail("it was built"))
    with pytest.raises(
        ArbiterError, match=r"M parameters need about [\d.]+ GB in float64, [\d.]+ GB are free"
    ):
        causal_lm_run(tmp_path)
    assert (available_bytes() or 1) > 0


def tokenizer_in(folder):
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    known = {"[UNK]": 0, **{letter: i for i, letter in enumerate("abcdefghijklmnopqrstuvwxyz", 1)}}
    tokenizer = Tokenizer(models.WordLevel(known, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="[UNK]").save_pretrained(folder)


def test_text_is_read_by_the_tokenizer_of_the_folder(tmp_path):
    config_of("llama", tmp_path)
    text = tmp_path / "text.txt"
    text.write_text("abcdefghij" * 40, encoding="utf-8")
    with pytest.raises(ArbiterError, match="--text needs its tokenizer"):
        causal_lm_run(tmp_path, text=text)
    tokenizer_in(tmp_path)
    run = causal_lm_run(tmp_path, text=text)
    assert run.rows.flatten().tolist()[:12] == [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 1, 2]
    text.write_text("abc", encoding="utf-8")
    with pytest.raises(ArbiterError, match="3 tokens found, at least"):
        causal_lm_run(tmp_path, text=text)
    with pytest.raises(ArbiterError, match="No such file"):
        causal_lm_run(tmp_path, text=tmp_path / "absent.txt")
