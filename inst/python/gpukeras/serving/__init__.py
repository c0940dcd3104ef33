"""Serves predictions as JSON over HTTP, in a process of its own."""
