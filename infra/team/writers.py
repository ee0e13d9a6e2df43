"""Who may change anything in MLflow: those who have the role ``writer``. Its server imports this (``mlflow.ini``).

MLflow's own permissions leave a gap: anybody who can log in can create experiments and models.
"""

from flask import Response, request
from mlflow.server import auth
from werkzeug.datastructures import Authorization

READS = ("search", "get-", "graphql")
"""Prefixes of the last part of POST paths that change nothing; other paths need the role."""


def authenticate() -> Authorization | Response:
    """Return who asks, or the response to send if they may not."""
    answer = auth.authenticate_request_basic_auth()
    reads = request.method in ("GET", "HEAD") or request.path.rpartition("/")[2].startswith(READS)
    if isinstance(answer, Response) or reads:
        return answer
    user = auth.store.get_user(answer.username)
    may = user.is_admin or any(role.name == "writer" for role in auth.store.list_user_roles(user.id))
    return answer if may else auth.make_forbidden_response()
