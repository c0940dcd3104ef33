"""Datasets on disk: written once, opened again."""
