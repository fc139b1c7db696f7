"""Healthy runs of causal language models of transformers: tiny, random weights, attention in eager mode.

One generic run serves all of them: nothing in it knows an architecture but the table of sizes.
"""

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mothertongue_arbiter import Declared
from mothertongue_arbiter.declared_optimizer import Group, Optimizer

VOCABULARY, WIDTH, LAYERS, HEADS, KV_HEADS, FFN, CONTEXT = 48, 32, 2, 4, 2, 48, 32
ROWS, TOKENS = 3, 12
LEARNING_RATE = 1e-3

PLAIN = {
    "hidden_size": WIDTH,
    "intermediate_size": FFN,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "max_position_embeddings": CONTEXT,
}
NO_GROUPS = {name: size for name, size in PLAIN.items() if name != "num_key_value_heads"}
GPT = {"n_embd": WIDTH, "n_layer": LAYERS, "n_head": HEADS, "n_positions": CONTEXT}
EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}

# model_type of transformers: what differs from PLAIN, or all sizes where the names are others.
SIZES: dict[str, dict[str, Any]] = {
    "llama": PLAIN,
    "mistral": PLAIN,
    "mixtral": PLAIN | EXPERTS,
    "qwen2": PLAIN,
    "qwen2_moe": PLAIN
    | {
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 16,
        "shared_expert_intermediate_size": 16,
    },
    "qwen3": PLAIN | {"head_dim": 8},
    "qwen3_moe": PLAIN
    | {"head_dim": 8, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16},
    "gemma": PLAIN | {"head_dim": 8},
    "gemma2": PLAIN | {"head_dim": 8, "query_pre_attn_scalar": 8, "sliding_window": 8},
    "gemma3_text": PLAIN | {"head_dim": 8, "query_pre_attn_scalar": 8, "sliding_window": 8},
    "phi": PLAIN,
    "phi3": PLAIN | {"pad_token_id": 0},
    "gpt2": GPT,
    "gpt_neox": NO_GROUPS,
    "gptj": GPT | {"rotary_dim": 4},
    "gpt_neo": {
        "hidden_size": WIDTH,
        "num_layers": LAYERS,
        "num_heads": HEADS,
        "max_position_embeddings": CONTEXT,
        "attention_types": [[["global", "local"], 1]],
        "window_size": 4,
        "intermediate_size": FFN,
    },
    "gpt_bigcode": GPT,
    "olmo": PLAIN,
    "olmo2": PLAIN,
    "olmoe": PLAIN | {"num_experts": 4, "num_experts_per_tok": 2},
    "granite": PLAIN,
    "granitemoe": PLAIN | EXPERTS,
    "falcon": {
        "hidden_size": WIDTH,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "max_position_embeddings": CONTEXT,
    },
    "mpt": {"d_model": WIDTH, "n_layers": LAYERS, "n_heads": HEADS, "max_seq_len": CONTEXT},
    "bloom": {"hidden_size": WIDTH, "n_layer": LAYERS, "n_head": HEADS},
    "stablelm": PLAIN,
    "cohere": PLAIN,
    "cohere2": PLAIN | {"sliding_window": 8},
    "opt": NO_GROUPS | {"ffn_dim": FFN, "word_embed_proj_dim": WIDTH},
    "starcoder2": PLAIN,
    "codegen": GPT | {"rotary_dim": 4, "n_ctx": CONTEXT},
    "persimmon": NO_GROUPS,
    "smollm3": PLAIN | {"pad_token_id": 0},
    "helium": PLAIN | {"head_dim": 8},
    "glm": PLAIN | {"head_dim": 8, "pad_token_id": 0},
    "glm4": PLAIN | {"head_dim": 8, "pad_token_id": 0},
    "nemotron": PLAIN,
    "arcee": PLAIN,
    "seed_oss": PLAIN | {"head_dim": 8},
    "ernie4_5": PLAIN | {"head_dim": 8},
    "exaone4": PLAIN | {"sliding_window": 8},
    "biogpt": NO_GROUPS,
    "xglm": {"d_model": WIDTH, "ffn_dim": FFN, "num_layers": LAYERS, "attention_heads": HEADS},
}
SPECIAL = {"bos_token_id": 1, "eos_token_id": 1}


class TransformersRun:
    """A causal language model of transformers, trained on random rows."""

    def __init__(self, model_type: str, *, dtype: torch.dtype | None = None) -> None:
        from transformers import AutoConfig, AutoModelForCausalLM

        self.model_type = model_type
        sizes = SPECIAL | SIZES[model_type] | {"vocab_size": VOCABULARY, "use_cache": False}
        config = AutoConfig.for_model(model_type, **sizes)
        config.pad_token_id = getattr(config, "pad_token_id", None) or 0
        state = torch.get_rng_state()
        torch.manual_seed(3)
        self.model = AutoModelForCausalLM.from_config(config, attn_implementation="eager")
        torch.set_rng_state(state)
        for module in self.model.modules():
            if isinstance(module, nn.Dropout):
                module.p = 0.0
        self.model.train()
        if dtype is not None:
            self.model.to(dtype)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), LEARNING_RATE, weight_decay=0.0)
        is_mixture = any("expert" in name or "router" in name for name, _ in self.model.named_parameters())
        self.declared = Declared(
            vocabulary=VOCABULARY,
            conditional=("*expert*", "*router*", "*gate*") if is_mixture else (),
            optimizer=Optimizer(groups=(Group(parameters=("*",), learning_rate=LEARNING_RATE),)),
        )

    def batch(self, step: int) -> dict[str, Tensor]:
        generator = torch.Generator().manual_seed(50 + step)
        return {"input_ids": torch.randint(2, VOCABULARY, (ROWS, TOKENS), generator=generator)}

    def forward(self, model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        mask = torch.ones_like(batch["input_ids"])
        return model(input_ids=batch["input_ids"], attention_mask=mask).logits

    def loss(self, model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        logits = self.forward(model, batch)
        return F.cross_entropy(logits[:, :-1].flatten(0, 1), batch["input_ids"][:, 1:].flatten())

    def train_step(self, step: int) -> None:
        self.optimizer.zero_grad()
        self.loss(self.model, self.batch(step)).backward()
        self.optimizer.step()

    def checkpoint(self) -> dict[str, Any]:
        state = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}
        return deepcopy(state | {"random": torch.get_rng_state()})

    def resume(self, state: dict[str, Any]) -> None:
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        torch.set_rng_state(state["random"])

    def rebuild(self, dtype: torch.dtype | None = None) -> "TransformersRun":
        return TransformersRun(self.model_type, dtype=dtype)


def maker(model_type: str) -> Callable[[], TransformersRun]:
    return lambda: TransformersRun(model_type)


ARCHITECTURES: dict[str, Callable[[], TransformersRun]] = {
    f"transformers {model_type}": maker(model_type) for model_type in SIZES
}
