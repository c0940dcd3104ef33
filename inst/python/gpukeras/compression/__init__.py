"""Makes models smaller and faster, and measures what they lose by it."""
