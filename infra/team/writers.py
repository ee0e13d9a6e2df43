"""Who may change anything in MLflow: those who have the role ``writer``. Its server imports this (``mlflow.ini``).

MLflow's own rights leave a gap: anybody who may log in may make experiments and models.
"""

from flask import Response, request
from mlflow.server import auth
from werkzeug.datastructures import Authorization

READS = ("/search", "/graphql")
"""How the paths end that are posted to and change nothing."""


def authenticate() -> Authorization | Response:
    """Who asks, or the answer to them where they may not ask this."""
    found = auth.authenticate_request_basic_auth()
    if isinstance(found, Response) or request.method in ("GET", "HEAD") or request.path.endswith(READS):
        return found
    user = auth.store.get_user(found.username)
    may = user.is_admin or any(role.name == "writer" for role in auth.store.list_user_roles(user.id))
    return found if may else auth.make_forbidden_response()
