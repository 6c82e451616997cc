"""What each part of the page shows, as plain values."""
