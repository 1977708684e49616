"""The paper's mathematics in pure torch; imports nothing else of this package."""
