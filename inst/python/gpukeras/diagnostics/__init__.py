"""Implements `gpu_check()`: reads facts, detects causes and gives a verdict."""
