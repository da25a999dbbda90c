"""Data files and what is made of them: examples, splits, prompts, entity spans, multiple-choice questions."""
