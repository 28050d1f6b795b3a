"""Scripts the Makefile calls: set-up, stubs, wheel check. The product needs none of them."""
