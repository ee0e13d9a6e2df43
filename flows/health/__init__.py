"""What ``plm doctor`` looks at: one file a kind of check, each a function from a checkout to findings."""
