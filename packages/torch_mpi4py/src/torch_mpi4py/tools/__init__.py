"""Traffic and clocks."""
