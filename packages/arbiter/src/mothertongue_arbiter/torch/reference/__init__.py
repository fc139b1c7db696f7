"""The second opinion: logits and gradients of an independent forward with the same weights."""
