"""Charter to be written by the owner of this package."""
