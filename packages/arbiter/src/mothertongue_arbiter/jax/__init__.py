"""The adapter for JAX; the only part of the arbiter that imports it."""

from mothertongue_arbiter.jax.battery import audit_jax

__all__ = ["audit_jax"]
