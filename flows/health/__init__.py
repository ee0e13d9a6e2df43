"""The checks of ``plm doctor``: one file per kind, each check a function from a checkout to findings."""
