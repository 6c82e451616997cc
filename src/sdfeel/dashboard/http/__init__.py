"""Requests, responses, and who may ask."""
