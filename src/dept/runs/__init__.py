"""Runs: a method over images, into a run folder."""
