"""One self-contained HTML page per run or benchmark: what changed, what it cost, and how to reproduce it."""
