"""Kernels with the structure of those that AWS publishes measurements of; see docs/model-accuracy.md."""
