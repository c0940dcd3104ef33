"""Checkpoints: files from which a training resumes after its process was killed."""
