"""Helpers that a program imports by name; nothing of openreg needs them."""
