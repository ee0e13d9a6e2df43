CREATE ROLE mlflow LOGIN PASSWORD '$database_mlflow_password';
CREATE DATABASE mlflow OWNER mlflow;
CREATE ROLE mlflow_auth LOGIN PASSWORD '$database_auth_password';
CREATE DATABASE mlflow_auth OWNER mlflow_auth;
CREATE ROLE prefect LOGIN PASSWORD '$database_prefect_password';
CREATE DATABASE prefect OWNER prefect;
REVOKE CONNECT ON DATABASE mlflow, mlflow_auth, prefect FROM PUBLIC;
