"""What a real training step hands to the optimizer, and what the optimizer does with it."""
