"""Benchmarks: cells of a suite, each run once and stored under the hash of its protocol."""
