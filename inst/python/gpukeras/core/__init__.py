"""Shared foundations: errors, options, messages, files and child processes."""
