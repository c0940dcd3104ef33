"""The only door to TensorFlow and Keras; devices, precision, memory."""
