"""Who may change anything in MLflow: those who have the role ``writer``. Its server imports this (``mlflow.ini``).

MLflow's own rights leave a gap: anybody who may log in may make experiments and models.
"""

from flask import Response, request
from mlflow.server import auth
from werkzeug.datastructures import Authorization

READS = ("search", "get-", "graphql")
"""How the last words begin of paths that are posted to and change nothing; the rest is checked as ever."""


def authenticate() -> Authorization | Response:
    """Who asks, or the answer to them where they may not ask this."""
    found = auth.authenticate_request_basic_auth()
    reads = request.method in ("GET", "HEAD") or request.path.rpartition("/")[2].startswith(READS)
    if isinstance(found, Response) or reads:
        return found
    user = auth.store.get_user(found.username)
    may = user.is_admin or any(role.name == "writer" for role in auth.store.list_user_roles(user.id))
    return found if may else auth.make_forbidden_response()
