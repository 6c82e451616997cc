"""The algorithm as data: who exists, how models mix, what a scheme decides, what it costs.

It uses NumPy and networkx only: nothing here knows about tensors, sockets or real time.
"""
