"""Activation patching: put one model's hidden states into another and see what it forgets."""
