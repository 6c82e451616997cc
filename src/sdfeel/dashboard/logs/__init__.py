"""Reading run directories and their event logs."""
