"""The run under audit: its loss, gradients and batches, in its own precision and in float64."""
