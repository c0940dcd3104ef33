"""Trains one model on several devices and several computers."""
