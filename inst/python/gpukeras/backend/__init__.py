"""Wraps TensorFlow and Keras: devices, precision, memory."""
