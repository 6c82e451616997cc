"""The algorithm as data: who exists, how models mix, what a scheme decides, what it costs.

NumPy only: nothing here knows tensors, files, sockets or real time.
"""
