"""Figures of our own, beyond the paper's, one file each."""
