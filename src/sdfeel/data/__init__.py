"""Data sets, how they are split over clients, and which client belongs to which server."""
