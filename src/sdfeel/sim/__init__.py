"""Carries out a scheme's decisions by weighted sums on a virtual clock."""
