"""Causes of an unused GPU: one record per cause, with a pure function of facts as its rule."""
