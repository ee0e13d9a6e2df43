"""``plm sweep``: parameters are searched by trials, each a stage brought up to date in a checkout of its own."""
