"""Data sets: where their images lie and what belongs to them."""
