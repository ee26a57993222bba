#!/bin/sh
# Backup copies a file, on one machine at a time: all machines may start it at the same time, from cron for example. It
# is the recipe "A shell script" of docs/cookbook.md as a complete program, and needs relockctl.
#
#	REDIS_URL=redis://user:password@host:port/db backup.sh SOURCE TARGET
#
# The exit status is 75 if the copy was not started, 76 if the lock was lost while it ran, and otherwise that of cp or mv.
set -u
source=$1 target=$2

status=0
copy='cp "$1" "$2.new.$$" && mv "$2.new.$$" "$2"' # if it is killed half way, the old backup is still whole
relockctl run --wait 0 lock:backup -- sh -c "$copy" sh "$source" "$target" || status=$?
case $status in
0) echo "the backup is complete" ;;
75) echo "another machine makes the backup, or Redis cannot be reached" >&2 ;;
76) echo "the lock was lost: another machine may have written, too" >&2 ;;
*) echo "the backup failed" >&2 ;;
esac
exit "$status"
