"""Judges: language models that rate an answer from 0 to 100, and how their ratings are read."""
