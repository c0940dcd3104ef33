"""Programs that run as child processes, because their queries may hang or crash."""
