"""One self-contained HTML page per run or benchmark: what changed, for whom, at what cost, and how to repeat it."""
