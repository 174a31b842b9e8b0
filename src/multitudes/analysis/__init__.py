"""Analysis: what methods cost and gain on your network, measured."""
