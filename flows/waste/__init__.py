"""What ``plm gc`` deletes: one file per store, with functions from a checkout and the rules to what is not kept."""
