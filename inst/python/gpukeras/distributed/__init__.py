"""Several devices, several computers: one training."""
