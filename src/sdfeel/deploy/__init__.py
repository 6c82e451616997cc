"""Deployments: a federation's files, its processes, and the operator's commands."""
