"""Figures of our own: questions that the paper leaves open."""
