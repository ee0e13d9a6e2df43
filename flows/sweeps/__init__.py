"""``plm sweep``: searches parameters by trials, each of which brings a stage up to date in a checkout of its own."""
