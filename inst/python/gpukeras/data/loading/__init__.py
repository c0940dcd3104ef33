"""From rows to blocks of batches on the device."""
