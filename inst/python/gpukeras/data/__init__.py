"""From a user's rows to batches on the device."""
