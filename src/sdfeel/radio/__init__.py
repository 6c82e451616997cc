"""Devices and links, turned into the core's Cost."""
