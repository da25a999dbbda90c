"""Embedded worlds: data and models made on the spot, so that everything can be run without a download."""
