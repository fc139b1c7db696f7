"""What the model reads and learns: rows, labels, documents, the held-out part."""
