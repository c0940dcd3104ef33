"""What the computer and its GPUs do while code runs, sampled from a process of its own."""
