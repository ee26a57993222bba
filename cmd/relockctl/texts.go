package main

// What the help and the manual page say. The help has few words: see manual.go.

const aboutTheRedis = `Without --url and --addr the Redis is that of $REDIS_URL, or localhost:6379 (a
Sentinel: localhost:26379). The password of a URL without one is $REDISCLI_AUTH.
For a Cluster pass the address of any node.`

const aboutHelp = `Without a command relockctl lists all locks. "relockctl COMMAND -h" describes a
command, "relockctl man" everything.`

const exitsOfAll = `  0  success
  1  Redis cannot be reached or returned an error, or something else failed
  2  the command line is not valid
  3  show, unlock: the lock is not held
  4  unlock: not released`

const exitsOfLists = `  0  success
  1  Redis failed, or the list is incomplete: stderr counts the keys left out
  2  the command line is not valid`

const exitsOfShow = `  0  the lock is held
  1  Redis cannot be reached or returned an error, or the key is not a lock
  2  the command line is not valid
  3  the lock is not held`

const exitsOfServe = `  0  ended with Ctrl-C
  1  Redis failed, or the port cannot be opened
  2  the command line is not valid`

const exitsOfUnlock = `  0  released
  1  Redis cannot be reached or returned an error, or the key is not a lock
  2  the command line is not valid
  3  the lock is not held
  4  not released: you did not answer yes, or the holders have changed meanwhile`

const exitsOfRun = `  n    that of the command; 128+n: signal n ended the command, or the wait
  2    the command line is not valid
  75   not acquired in time (with --skip 0 if others hold it), or Redis failed
  76   the lock was lost, or could not be renewed, while the command ran
  126  the command cannot be executed; 127: it was not found`

const manualOfAll = `The result is written to stdout, and all other text to stderr. Only unlock and run write to
Redis, and serve if it is allowed to.

Flags begin with two dashes. All arguments behind "--" are names, or the command of run.

Without a command relockctl lists all locks.`

const manualOfList = `list, watch and serve read the keyspace with SCAN, in small steps; in a Cluster they do so on
each master. Keys that the user has no permission to read, and locks with an additional key that holds other data,
are left out and counted: then the exit status is 1.

On a terminal a total follows. As far as its width needs, names are shortened in the middle, and the columns HOLDS,
OWNER and CLIENT are not shown, which is said below. --wide shows everything.

With --sort lease those come first that expire first. --waiting also lists the locks whose waiters are unknown.`

const manualOfShow = `The first 1,000 waiters are listed, in the order in which they get the lock.

A process that holds a lock renews its lease whenever a third of it has passed, so show has to look for a while: it ends
when it is certain, after 11s at most if the lease is the usual one of 30s. Without --for it looks on a terminal only,
and not with --json. A lease that does not grow belongs to a process that has ended, is paused or cannot reach Redis,
or is one that was not to be renewed. With --json and --for the holders have "grows".`

const manualOfServe = `serve prints the URL of the page, which shows who holds which locks, for how long at least,
and who waits. The locks that others have waited for the longest come first. Redis is read only while somebody looks
at the page, once in --every however many they are, and at most 5,000 locks are listed.

With --hosts, localhost, 127.0.0.1, [::1] and the IP address of --addr are still allowed. A request for another name
is refused, because a web site could otherwise read the page through your browser.

With --allow-unlock only the holders that the page has shown lose their lock, and each release is written to stderr.
PATTERN limits which locks are listed, and which can be released: the page of a single lock shows any lock.`

const manualOfUnlock = `unlock does not ask the holder, which may still be working. A process that uses relock, and
has held a lock for more than a second, is told of the loss by a message, usually within milliseconds. Without that
message a holder notices when it next renews its lease or asks Redis about the lock, or when its lease expires.

If the holders change while you are asked, nothing is released, and a holder that has acquired the lock after that
keeps it. To release only one of several holders, use serve --allow-unlock.`

const manualOfRun = `run looks the command up, acquires the lock, runs the command, and releases the lock when the
command has ended. By default the lock is renewed while the command runs, with a lease of 30s.

relockctl passes on the signals HUP, INT, QUIT, TERM, USR1 and USR2, but on a terminal not INT and QUIT, which the
terminal sends to the command itself. On Linux these signals, and TERM and KILL when the lock is lost, go to all
processes that the command has started, directly or not. On other systems they go to its process group, or, on a
terminal, to the command alone. A signal while relockctl waits ends the wait, and the command is not started. If
relockctl is killed, the command is killed, too; on other systems than Linux, and for processes that the command has
started, that is not so.

If the lock cannot be renewed, the command gets TERM when only the grace is left until the lock may expire, and KILL
after the grace, before another owner can acquire the lock. After a pause of relockctl only what is left of that time
counts. The grace is shorter than the lease. If the lock is released by force, or its key is deleted, another owner
may acquire it at once. Then the command gets TERM when relockctl notices that, and KILL after the grace. When a lock
that was held for more than a second is released by force with relockctl or relock, a message tells relockctl so,
usually within milliseconds. Otherwise it notices at the next renewal, after a third of the lease at most. A lock with
--lease is not renewed, so then the loss may show only when it is released. On Windows the command is killed instead
of getting TERM.

If a signal ends the command, or if it ends after relockctl has passed on INT, QUIT or TERM, the processes that it has
left running have to end, too: they get TERM, unless they were asked already, and KILL after the grace, and then the
lock is released. What a command that ended by itself has left running is left alone, with a warning.

With --skip nothing is printed if others hold the lock for the whole wait; all other failures are reported as
without it. If Redis has another number of permits than --semaphore, that number applies, and a warning is printed.`

const manualOfTheRedis = `With --sentinel-master, --addr may have several addresses, separated by commas. User and
password of the URL are those of the Redis. Those of a Sentinel are parameters of the URL:

  redis://:secret@host:26379?sentinel_username=me&sentinel_password=other

A URL that begins with rediss:// uses TLS, and so does each flag that begins with --tls. The certificate of the Redis
has to be for the name or the IP address that the command line has.`

const manualOfOutput = `HOLDS is how many times the owner has acquired the lock; of a semaphore it is the number of
its permits. OWNER is the owner that acquired the lock from Redis. In a Go service its process may have handed the
lock off to another goroutine since, or several readers may share it. Of a hold that was detached, and not attached
by a process yet, it is "detached"; CLIENT, LABEL and HOST are those of the process that has detached it. LABEL is
the display name of a Go service (see WithLabel of relock). It needs permission for HMGET on relock_client:*, and is
empty for Java services. TYPE lock may also be a fair lock without waiters; "fenced lock or election" is a lock with
a fencing token, as an election is, whose candidates wait by design. A column without any text is not shown.

WAITING is the number of waiters that Redis knows: all of a fair lock, and otherwise one for each process. It is
unknown without permission for relock_line:* and HMGET. HAS WAITED is the least that a waiter has waited; a list has
that of the longest wait. REACHABLE is no if the waiter's process is not connected to its channel, so that it is
passed over, and unknown if it asks by itself, or without permission for PUBSUB NUMSUB. ALIVE FOR is how long a
waiter of a fair lock, or for a write lock, counts as alive without another sign of life, and JAVA DEADLINE is how
long until Java services remove a waiter of a fair lock, if it is the first one then.

Names with characters that are not printable are quoted as in Go. Pass such a name with $'...' of the shell:
$'a\x1bb' for "a\x1bb". JSON has U+FFFD for bytes that are not UTF-8, and escapes all other characters that are not
printable.`

const manualOfEnvironment = `REDIS_URL is the address of the Redis without --url and --addr.

REDISCLI_AUTH is its password if the URL has none.

RELOCK_NAME and, with --fenced, RELOCK_TOKEN are set for the command of run.`

const manualOfLinks = `https://github.com/relock-go/relock/blob/main/docs/README.md`
