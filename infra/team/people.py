"""Creates what MLflow's server needs before it starts: two people, a role, and the buckets. `start.sh` calls it.

An existing password is kept: the person may have changed it.
"""

import os
from collections.abc import Callable
from typing import Any

import boto3
from botocore.config import Config
from botocore.exceptions import ClientError
from mlflow.exceptions import MlflowException
from mlflow.server.auth.config import read_auth_config
from mlflow.server.auth.sqlalchemy_store import SqlAlchemyStore
from mlflow.utils.workspace_utils import DEFAULT_WORKSPACE_NAME


def once(make: Callable[..., Any], *what: Any) -> None:
    """Create something unless it exists."""
    try:
        make(*what)
    except MlflowException as error:
        if error.error_code != "RESOURCE_ALREADY_EXISTS":
            raise


def people() -> None:
    """Create a person with the role ``writer``, and one without, who may read."""
    store = SqlAlchemyStore()
    store.init_db(read_auth_config().database_uri)
    for name in ("writer", "reader"):
        once(store.create_user, name, os.environ[f"TEAM_{name.upper()}_PASSWORD"])
    once(store.create_role, "writer", DEFAULT_WORKSPACE_NAME)
    role = store.get_role_by_name(DEFAULT_WORKSPACE_NAME, "writer")
    for kind in ("experiment", "registered_model", "prompt"):
        once(store.add_role_permission, role.id, kind, "*", "MANAGE")
    once(store.assign_role_to_user, store.get_user("writer").id, role.id)


def buckets() -> None:
    """Create a bucket for MLflow's files and one for DVC's."""
    # SeaweedFS accepts connections some seconds before it is ready.
    s3 = boto3.client("s3", config=Config(retries={"mode": "standard", "total_max_attempts": 10}))
    for name in ("mlflow", "dvc"):
        try:
            s3.create_bucket(Bucket=name)
        except ClientError as error:
            if error.response["Error"]["Code"] not in ("BucketAlreadyExists", "BucketAlreadyOwnedByYou"):
                raise


if __name__ == "__main__":
    people()
    buckets()
