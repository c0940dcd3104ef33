"""Wraps TensorFlow, JAX and Keras: devices, precision, memory."""
