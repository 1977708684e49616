"""Models: a backbone with prompts and head, its card, its files."""
