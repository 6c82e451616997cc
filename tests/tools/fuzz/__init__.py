"""Throws damaged messages at everything that decodes what a stranger sent.

`python -m tests.tools.fuzz --count 1000000` runs long; the test suite runs a short part of it.
Each case is a function of the seed, the target and its number, so every finding can be repeated.
"""
