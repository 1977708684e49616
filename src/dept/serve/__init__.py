"""Serve many domains on one backbone: a pool of adapters, mixed batches, an HTTP API, adaptation beside it."""
