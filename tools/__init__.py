"""Programs for developers: they are not in the wheel."""
