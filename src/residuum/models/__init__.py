"""Models: what they are called, how they are loaded, and where their parts sit."""
