"""Measure on the device, without ever waiting for it."""
