"""Reads profiler traces as plain records of work."""
