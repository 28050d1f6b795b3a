"""Generated protocol stubs. Only `penstock.rpc` and the servers import them."""
