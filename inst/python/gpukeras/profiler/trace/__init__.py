"""Profiler traces as plain records of work."""
