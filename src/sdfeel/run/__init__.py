"""Turns an experiment file into a durable run."""
