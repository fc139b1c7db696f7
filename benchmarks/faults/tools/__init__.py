"""Other checkers of PyTorch models, run on the zoo in an environment of their own."""
