"""Features from TFRecord files of other programs."""
