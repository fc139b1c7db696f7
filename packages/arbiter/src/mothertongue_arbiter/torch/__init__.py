"""The adapter for torch; the only part of the arbiter that imports it."""
