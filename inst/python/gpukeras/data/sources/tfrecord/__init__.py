"""TFRecord files that other programs wrote."""
