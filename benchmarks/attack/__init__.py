"""Seeded attacks on dept: mutated files, bad images, wrong calls, kills, crash points. Start with run.py."""
