"""Deployments: a federation's files, its processes, and what an operator asks of them."""
