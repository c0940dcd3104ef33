"""Programs that run as children: what they ask may hang, or end, the process that asks."""
