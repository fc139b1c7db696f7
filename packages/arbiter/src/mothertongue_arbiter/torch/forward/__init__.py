"""What a forward pass may look at, and what must make no difference to it."""
