"""Any causal language model that transformers can build, as a training run: `mothertongue audit --hf`.

From a config alone the weights are random and the audit is one of the architecture: its backward, its masks,
its own shift of the labels. From a folder with weights it is one of that model. No code in the folder runs.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping
from difflib import get_close_matches
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from mothertongue_arbiter.errors import ArbiterError
from mothertongue_arbiter.run import Declared

try:
    from transformers import (  # noqa: TID251 - this is the adapter for it
        CONFIG_MAPPING,
        AutoConfig,
        AutoModelForCausalLM,
        AutoTokenizer,
    )
    from transformers.models.auto.modeling_auto import (  # noqa: TID251
        MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
        MODEL_FOR_MASKED_LM_MAPPING_NAMES,
    )
except ModuleNotFoundError as error:
    if error.name != "transformers":
        raise
    raise ArbiterError("auditing a Hugging Face model needs transformers: pip install transformers") from None

ROWS, TOKENS = 2, 32  # of a batch; a backward that is wrong is wrong on few tokens
SEED = 0
# Own weights and what restores them, weights and gradients in float64, one direction and the way back.
BYTES_PER_PARAMETER = 56
BYTES_PER_LOGIT = 64
IGNORED = -100
LONGEST_REASON = 160  # characters that are repeated of an error of transformers
RANDOM_WEIGHTS = "the weights are random, so this certifies the architecture and its training loss"
RANDOM_ROWS = "the rows are random token ids; --text FILE audits real ones"


class CausalLmRun:
    """A causal language model of transformers with its own loss, on rows of token ids."""

    def __init__(self, model: nn.Module, *, rows: Tensor, declared: Declared, notes: tuple[str, ...]) -> None:
        self.model = model
        self.rows = rows  # (N, T)
        self.declared = declared
        self.notes = notes

    def batch(self, step: int) -> dict[str, Tensor]:
        """Return ids (ROWS, T), with their positions where a shift changes nothing; rows come again."""
        first = step * ROWS % len(self.rows)
        ids = self.rows[first : first + ROWS]
        if self.declared.positions is None:
            return {"input_ids": ids}
        return {"input_ids": ids, "position_ids": torch.arange(ids.shape[1]).expand_as(ids)}

    def loss(self, model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        loss: Tensor = model(**batch, labels=batch["input_ids"]).loss
        return loss

    def forward(self, model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        logits: Tensor = model(**batch).logits
        return logits

    def targets(self, batch: dict[str, Tensor]) -> Tensor:
        """Return the next token of each position, and none for the last."""
        ids = batch["input_ids"]
        return torch.cat([ids[:, 1:], torch.full_like(ids[:, :1], IGNORED)], dim=1)


def causal_lm_run(path: Path, *, text: Path | None = None) -> CausalLmRun:
    """Return the run of the model in `path`, a folder or its config.json.

    Raises:
        ArbiterError: nothing there is a causal language model that can be built here.
    """
    config = _read_config(path)
    _check_memory(path, config)
    weights = sorted(path.glob("*.safetensors")) if path.is_dir() else []
    if path.is_dir() and not weights and any(path.glob("*.bin")):
        raise ArbiterError(f"{path}: its weights are pickled and pickles run code; save it as safetensors")
    model = _build(path, config, pretrained=bool(weights))
    rows = _text_rows(path, text) if text is not None else _random_rows(config)
    notes = (*(() if weights else (RANDOM_WEIGHTS,)), *(() if text is not None else (RANDOM_ROWS,)))
    experts = any("expert" in name and value for name, value in config.to_dict().items())
    declared = Declared(
        conditional=("*expert*",) if experts else (),
        positions="relative" if is_rotary(config) and takes_positions(model) else None,
    )
    return CausalLmRun(model, rows=rows, declared=declared, notes=notes)


def is_rotary(config: Any) -> bool:
    """Return whether positions enter by turning queries and keys, so that a shift of all changes nothing."""
    text = config.get_text_config()
    return bool(getattr(text, "rope_parameters", None) or getattr(text, "rope_theta", None))


def takes_positions(model: nn.Module) -> bool:
    """Return whether positions can be handed over; counted inside, they would move the mask as well."""
    return "position_ids" in inspect.signature(model.forward).parameters


def is_trained(path: Path) -> bool:
    """Return whether `path` brings weights, which have learned something: no step 0 any more."""
    return path.is_dir() and any(path.glob("*.safetensors"))


def _read_config(path: Path) -> Any:
    file = path / "config.json" if path.is_dir() else path
    try:
        stated = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ArbiterError(
            f"{file}: {error.strerror}; a folder with config.json expected, nothing is downloaded"
        ) from None
    except ValueError as error:
        raise ArbiterError(f"{file}: no JSON ({error})") from None
    kind = stated.get("model_type") if isinstance(stated, dict) else None
    if kind not in CONFIG_MAPPING:
        near = get_close_matches(str(kind), list(CONFIG_MAPPING), n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise ArbiterError(
            f"{file}: model_type {kind!r} is not one of transformers {version('transformers')}{hint}"
        )
    if kind not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        raise ArbiterError(f"{file}: {kind} is no causal language model in transformers, one is expected")
    try:
        config = AutoConfig.from_pretrained(str(path), trust_remote_code=False, local_files_only=True)
    except Exception as error:  # a config may be wrong in any way
        raise ArbiterError(f"{file}: {_first_line(error)}") from None
    encoder = kind in MODEL_FOR_MASKED_LM_MAPPING_NAMES and not getattr(config, "is_encoder_decoder", False)
    if encoder and not getattr(config, "is_decoder", False):
        raise ArbiterError(
            f"{file}: {kind} is an encoder, where every token sees all others; a causal language model is "
            'expected ("is_decoder": true makes it one)'
        )
    config.use_cache = False
    return config


# transformers types its constructors in part only.
_from_config: Any = AutoModelForCausalLM.from_config
_from_pretrained: Any = AutoModelForCausalLM.from_pretrained
_tokenizer: Any = AutoTokenizer.from_pretrained


def _check_memory(path: Path, config: Any) -> None:
    """Refuse a model that float64 would not fit into memory, before it is built."""
    try:
        with torch.device("meta"):
            empty = _from_config(config, trust_remote_code=False)
    except Exception as error:  # what cannot be built without memory cannot be built with it
        raise ArbiterError(f"{path}: cannot be built: {_first_line(error)}") from None
    count = sum(parameter.numel() for parameter in empty.parameters())
    logits = ROWS * TOKENS * _vocabulary(config)
    needed, free = count * BYTES_PER_PARAMETER + logits * BYTES_PER_LOGIT, available_bytes()
    if free is not None and needed > free:
        raise ArbiterError(
            f"{path}: {count / 1e6:,.0f} M parameters need about {needed / 1e9:.1f} GB in float64, "
            f"{free / 1e9:.1f} GB are free; audit a config with fewer layers: every layer is built alike"
        )


def available_bytes() -> int | None:
    """Return the memory that a program can still have; None where the system does not say."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    facts: Mapping[str, str] = dict(line.split(":", 1) for line in lines)
    return int(facts["MemAvailable"].split()[0]) * 1024 if "MemAvailable" in facts else None


def _build(path: Path, config: Any, *, pretrained: bool) -> nn.Module:
    torch.manual_seed(SEED)
    try:
        if not pretrained:
            model: nn.Module = _from_config(config, attn_implementation="eager", trust_remote_code=False)
            return model.float().train()
        model, found = _from_pretrained(
            str(path),
            config=config,
            attn_implementation="eager",
            trust_remote_code=False,
            local_files_only=True,
            use_safetensors=True,
            output_loading_info=True,
        )
    except Exception as error:  # whatever transformers cannot do with it is the finding
        raise ArbiterError(f"{path}: cannot be built: {_first_line(error)}") from None
    absent = sorted(found["missing_keys"])
    if absent:
        raise ArbiterError(
            f"{path}: {len(absent)} tensors of the model are not in its weights and would be random: "
            f"{', '.join(absent[:3])}"
        )
    return model.float().train()


def _vocabulary(config: Any) -> int:
    return int(config.get_text_config().vocab_size)


def _row_tokens(config: Any) -> int:
    longest = getattr(config.get_text_config(), "max_position_embeddings", None)
    return min(TOKENS, longest) if isinstance(longest, int) and longest > 1 else TOKENS


def _random_rows(config: Any) -> Tensor:
    """Return random ids, none of which means something to the model, such as padding or an image."""
    special = {
        one
        for name, value in {**config.to_dict(), **config.get_text_config().to_dict()}.items()
        if name.endswith(("token_id", "token_index"))
        for one in (value if isinstance(value, list) else [value])
        if isinstance(one, int)
    }
    plain = torch.tensor([one for one in range(_vocabulary(config)) if one not in special])
    random = torch.Generator().manual_seed(SEED)
    return plain[torch.randint(len(plain), (8 * ROWS, _row_tokens(config)), generator=random)]


def _text_rows(path: Path, text: Path) -> Tensor:
    try:
        words = text.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ArbiterError(f"{text}: {getattr(error, 'strerror', None) or 'no UTF-8 text'}") from None
    try:
        tokenizer = _tokenizer(str(path), trust_remote_code=False, local_files_only=True)
        ids = tokenizer(words, add_special_tokens=False)["input_ids"]
    except Exception as error:  # a folder without a tokenizer raises one of many errors
        raise ArbiterError(f"{path}: --text needs its tokenizer: {_first_line(error)}") from None
    rows = len(ids) // TOKENS // ROWS * ROWS
    if rows < 2 * ROWS:
        raise ArbiterError(f"{text}: {len(ids)} tokens found, at least {2 * ROWS * TOKENS} expected")
    return torch.tensor(ids[: rows * TOKENS]).reshape(rows, TOKENS)


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    reason = lines[0] if lines else "no reason given"
    return f"{type(error).__name__}: {reason[:LONGEST_REASON]}"
