"""Training: one loop, many objectives."""
