"""Programs that run as child processes: what they ask may hang or crash."""
