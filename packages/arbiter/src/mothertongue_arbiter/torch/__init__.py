"""The adapter for torch; the only part of the arbiter that imports it.

Each folder builds on those above it only:

    run         the run under audit: its loss, gradients and batches, in its own precision and in float64
    gradients   is the gradient that of the loss, and where is it not
    forward     what a forward pass may look at, and what must make no difference to it
    reference   the second opinion: logits and gradients of an independent forward
    data        what the model reads and learns: rows, labels, documents, the held-out part
    optimizer   what a real step hands to the optimizer, and what the optimizer does with it
    program     the program around the model: its resume, its ranks, its speed
    on_device   measure on the device, without waiting for it; for the monitor

The doors are beside them: `battery` asks every check of a run, `causal_lm`, `trainer_run` and
`transformers_callback` make a run of what Hugging Face builds, `distributed_check` asks inside a program of
several processes, and `monitor` watches a training while it runs.
"""
