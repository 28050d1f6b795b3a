"""Consumer groups on the flights data: one group with many workers, and many groups."""
