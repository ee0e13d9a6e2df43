#!/bin/sh
# Starts one of a team's servers in the foreground, with the settings that prepare.py has written to the folder $TEAM.
# supervisord.conf and ../compose.yaml call it.
set -eu
here=$(dirname "$0")
set -a
[ ! -e "$TEAM/secrets/$1.env" ] || . "$TEAM/secrets/$1.env"
. "$TEAM/secrets/ports.env"
set +a
# On Debian the programs of PostgreSQL's server are not on the PATH, in one folder per version; runuser is in /usr/sbin.
# Databases are read by the version that created them; new ones are created by the newest.
version=$(cat "$TEAM/postgres/data/PG_VERSION" 2>/dev/null || ls /usr/lib/postgresql 2>/dev/null | sort -V | tail -n 1)
PATH=$PATH:/usr/sbin:/usr/lib/postgresql/$version/bin

case "$1" in
postgres)
	data=$TEAM/postgres/data
	# PostgreSQL refuses to run as root.
	as=
	[ "$(id -u)" != 0 ] || as="runuser -u postgres --"
	if [ ! -e "$data" ]; then
		rm -rf "$data.new"
		mkdir -p -m 711 "$TEAM/postgres"
		mkdir -m 700 "$data.new"
		[ -z "$as" ] || chown postgres "$data.new"
		# Its user connects through the socket, without a password; everybody else through the network, with one.
		$as initdb --pgdata "$data.new" --encoding UTF8 --no-locale --auth-local peer --auth-host scram-sha-256
		$as postgres --single -D "$data.new" postgres < "$TEAM/secrets/postgres.sql"
		mv "$data.new" "$data"
	fi
	exec $as postgres -D "$data" -p "$POSTGRES_PORT" -c listen_addresses=127.0.0.1 -c unix_socket_directories="$data" \
		-c max_connections=200
	;;
s3)
	# Volumes of a gigabyte, as many as fit on the disk.
	exec weed server -dir "$TEAM/s3" -ip 127.0.0.1 -ip.bind 127.0.0.1 -master.telemetry=false \
		-master.volumeSizeLimitMB 1024 -volume.max 0 -volume.preStopSeconds 1 \
		-master.port "$MASTER_PORT" -master.port.grpc "$MASTER_GRPC_PORT" \
		-volume.port "$VOLUME_PORT" -volume.port.grpc "$VOLUME_GRPC_PORT" \
		-filer -filer.port "$FILER_PORT" -filer.port.grpc "$FILER_GRPC_PORT" \
		-s3 -s3.port "$S3_PORT" -s3.port.grpc "$S3_GRPC_PORT" -s3.port.iceberg 0 -s3.port.lance 0 \
		-s3.config "$TEAM/secrets/s3.json"
	;;
mlflow)
	python "$here/people.py"
	export PYTHONPATH="$here${PYTHONPATH:+:$PYTHONPATH}" # for writers.py
	exec mlflow server --app-name basic-auth
	;;
prefect)
	exec prefect server start
	;;
proxy)
	exec caddy run --adapter caddyfile --config "$TEAM/secrets/proxy.Caddyfile"
	;;
esac
