#!/bin/sh
# Run has three machines start backup.sh, and checks with which exit status each of them ends.
#
#	examples/backup/run.sh
#
# It needs Go and redis-server. The server listens on a socket in a temporary directory, and ends with the script. The
# source of the first copy is a pipe, so the copy goes on until the others have tried. If redis-server is not installed,
# the script says so and ends; with CI=true that is a failure.
#
# Rules: the exit status is 1 unless exactly the expected copies are made. Nothing is left on the disk.
set -eu
cd "$(dirname "$0")/../.."

if ! command -v redis-server >/dev/null; then
	echo "backup: skipped: no redis-server on the PATH"
	[ "${CI:-}" != true ]
	exit
fi
dir=$(mktemp -d)
server=
finish() {
	if [ -n "$server" ]; then kill "$server" && wait "$server" || true; fi
	rm -rf "$dir"
}
trap finish EXIT
trap 'exit 1' INT TERM

go build -C cmd/relockctl -o "$dir/relockctl" .
redis-server --port 0 --unixsocket "$dir/redis.sock" --save '' --dir "$dir" --daemonize no >"$dir/redis.log" &
server=$!
for _ in 1 2 3 4 5 6 7 8 9 10; do [ -S "$dir/redis.sock" ] || sleep 0.5; done
export REDIS_URL="unix://$dir/redis.sock" PATH="$dir:$PATH"

# machine NAME SOURCE: starts backup.sh, and prints how it ends
machine() {
	status=0
	examples/backup/backup.sh "$2" "$dir/target" >"$dir/$1" 2>&1 || status=$?
	echo "$1: exit status $status: $(tail -n 1 "$dir/$1")"
	return "$status"
}

# expect STATUS COMMAND...: fails unless the command ends with that exit status
expect() {
	want=$1 got=0
	shift
	"$@" || got=$?
	[ "$got" = "$want" ] || {
		echo "backup: the exit status of $1 $2 is $got, and not $want" >&2
		exit 1
	}
}

mkfifo "$dir/pipe"
echo "new data" >"$dir/file"

machine red "$dir/pipe" &
red=$!
exec 3>"$dir/pipe" # waits until the copy of red has begun
expect 75 machine blue "$dir/file"
expect 0 relockctl run --skip --wait 0 lock:backup -- touch "$dir/skipped"
[ ! -e "$dir/skipped" ]
echo "old data" >&3
exec 3>&-
expect 0 wait "$red"
grep -qx "old data" "$dir/target"

expect 0 machine green "$dir/file"
grep -qx "new data" "$dir/target"
expect 1 machine green "$dir/missing"

kill "$server" && wait "$server" || true
server=
expect 75 machine green "$dir/file"
echo "each backup was made by one machine"
