"""Scripts the Makefile calls: set-up, protocol stubs, wheel check. Nothing in the product needs them."""
