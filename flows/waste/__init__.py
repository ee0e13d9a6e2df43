"""What ``plm gc`` deletes: one file a store, each a function from a checkout and the rules to what is not kept."""
