"""Programs for developers: they fuzz, besiege and measure; none of them is in the wheel."""
