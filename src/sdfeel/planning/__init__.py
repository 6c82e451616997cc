"""Chooses how to train: schemes, periods and rates, for a network and a goal."""
