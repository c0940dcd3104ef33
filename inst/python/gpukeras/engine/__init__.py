"""One training step, and many steps in a call, compiled or not."""
