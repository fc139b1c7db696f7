import pytest
import torch
import transformers

from mothertongue_arbiter import Declared, Verdict
from mothertongue_arbiter.torch.reference.logits import reference_forward
from mothertongue_arbiter.torch.run.subject import Unavailable

CONFIG = {"model_type": "gpt2", "vocab_size": 40, "n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 32}


class GPT2Run:
    """A model of another family, which transformers has to build."""

    def __init__(self, architecture, documents=None):
        torch.manual_seed(0)
        values = {name: value for name, value in CONFIG.items() if name != "model_type"}
        self.model = transformers.AutoModelForCausalLM.from_config(transformers.GPT2Config(**values))
        isolated = documents is not None
        self.declared = Declared(vocabulary=40, architecture=architecture, isolated_documents=isolated)
        if isolated:
            self.documents = lambda step, rank: documents

    def batch(self, step):
        return torch.randint(40, (2, 8), generator=torch.Generator().manual_seed(step))

    def forward(self, model, batch):
        return model(batch, use_cache=False).logits

    def loss(self, model, batch):
        return model(batch, labels=batch, use_cache=False).loss


def answer(exact, run):
    subject = exact(run)
    with subject.stirred():
        return reference_forward(subject)


def test_the_same_architecture_passes(exact):
    assert answer(exact, GPT2Run(CONFIG)).verdict == Verdict.PASS


def test_another_epsilon_fails(exact):
    assert answer(exact, GPT2Run(CONFIG | {"layer_norm_epsilon": 1e-4})).verdict == Verdict.FAIL


def test_documents_are_asked_one_by_one(exact):
    documents = torch.tensor([[0] * 8, [0] * 5 + [1] * 3])
    check = answer(exact, GPT2Run(CONFIG, documents))  # gpt2 does not keep the documents apart
    assert check.verdict == Verdict.FAIL
    assert "row 1 at 5" in check.evidence


def test_other_shapes_are_said(exact):
    with pytest.raises(Unavailable, match="size mismatch"):
        answer(exact, GPT2Run(CONFIG | {"n_embd": 32}))


def test_other_names_are_said(exact):
    with pytest.raises(Unavailable, match="no parameter"):
        answer(exact, GPT2Run(CONFIG | {"n_layer": 3}))
