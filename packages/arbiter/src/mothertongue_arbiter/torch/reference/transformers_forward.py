"""The forward of transformers as a reference, for an architecture that is not written out here."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from mothertongue_arbiter.torch.run.batches import MASK_NAMES, named_tensor
from mothertongue_arbiter.torch.run.subject import ExactSubject, Unavailable

MOST_DOCUMENTS = 16  # each is a forward of its own


def transformers_logits(subject: ExactSubject, architecture: Mapping[str, Any]) -> tuple[Tensor, Tensor]:
    """Return logits (B, T, V) of the model that transformers builds, and where they are known (B, T).

    Raises:
        Unavailable: transformers is not installed, cannot build it, or names its weights otherwise.
    """
    values = {name: value for name, value in architecture.items() if name not in ("names", "rope_pairing")}
    kind = values.pop("model_type", None)
    try:
        transformers = importlib.import_module("transformers")  # only if there is one: no dependency of ours
        config = transformers.AutoConfig.for_model(kind, **values)
        model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    except Exception as error:
        reason = (str(error).splitlines() or [""])[0]
        raise Unavailable(f"`architecture`: transformers does not build {kind!r}: {reason}") from None
    model = model.to(subject.ids.device, torch.float64).eval()
    own = {name: value.detach() for name, value in subject.run.model.state_dict().items()}
    ours, theirs = set(own), set(model.state_dict())
    if not {name for name, _ in model.named_parameters()} <= ours:
        absent = sorted(theirs - ours)[0]
        raise Unavailable(f"`architecture`: no parameter {absent}, as transformers names it")
    try:
        model.load_state_dict({name: value for name, value in own.items() if name in theirs}, strict=False)
    except RuntimeError as error:
        raise Unavailable(f"`architecture`: {str(error).splitlines()[-1].strip()}") from None
    return _logits(subject, model)


def _logits(subject: ExactSubject, model: Any) -> tuple[Tensor, Tensor]:
    ids, documents = subject.ids, subject.documents
    known = torch.ones_like(ids, dtype=torch.bool)
    if not subject.declared.isolated_documents or documents is None:
        mask = named_tensor(subject.batch, MASK_NAMES)
        asked = {} if mask is None else {"attention_mask": mask}
        return model(input_ids=ids, use_cache=False, **asked).logits, known
    spans = []
    for row in range(len(ids)):
        starts = [0, *((documents[row, 1:] != documents[row, :-1]).nonzero().flatten() + 1).tolist()]
        spans += [(row, slice(*ends)) for ends in zip(starts, [*starts[1:], ids.shape[1]], strict=True)]
    known[:] = False
    logits = None
    for row, columns in spans[:MOST_DOCUMENTS]:
        alone = model(input_ids=ids[row : row + 1, columns], use_cache=False).logits[0]
        if logits is None:
            logits = alone.new_zeros(*ids.shape, alone.shape[-1])
        logits[row, columns] = alone
        known[row, columns] = True
    assert logits is not None
    return logits, known
