"""`gpu_check()`: facts, causes, verdict."""
