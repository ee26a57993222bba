------------------------------- MODULE Detach -------------------------------
(***************************************************************************
Detach and Attach: a hold moves from one process to another.

Detach renames the holder ID of the record to a new one that no process has,
the detached ID, and returns a ticket with it.  Attach renames the detached ID
to a new ID of its own.  An Attach that gives up renames its ID back.

The module has the record of one lock, its copy on a replica, and processes
that acquire, renew, detach, attach and release it.  Every script is one step
of Redis.  A request may run late, also when its process has given up; it may
run twice; or it may be lost, and then the process sends it again or gives up.
Any process that has a ticket may try it, any number of times.

Left out: the line, because a renamed hold is not in it (Line.tla); time: a
lease may expire whenever no process believes that it holds the lock with this
ID (Validity.tla); permits and readers, which are renamed alike; and a reader
that is split off, where the old ID stays.

Simplified: every ID of a process that has ended has a tombstone.  The library
leaves it only if a request may still run.  A detached ID has none.

A replica confirms what acquires or renames (WithSyncedReplicas).  A release
may be unknown to it.

Bounds, and the number of distinct states.  At most three requests and one
answer are under way; both have two processes, 4 IDs and one fault.
  Detach           a request that runs twice, or is lost       414,933
  Detach-failover  a failover                                  342,256
Each mistakes/Detach-NAME.cfg seeds a mistake and names the rule that it
breaks:
  keepsTicket   Attach does not rename the ID, so the ticket works twice (Once)
  liveTicket    Attach accepts a live ID, as Inspect shows it (Has)
  sameField     Detach keeps the old ID: a renewal that is under way extends
                the lease of the detached hold (NotTouched)
  noTombstone   the old ID has no tombstone: an attempt that runs late acquires
                the lock for nobody (NoOrphan)
  notBuried     an Attach that gives up leaves no tombstone: it runs late, and
                takes the lock away from the ticket (NoOrphan)
  idFirst       a Detach that is not confirmed releases the detached ID first:
                it runs late, and the lock is held by nobody (NoOrphan)
  noPutBack     an Attach that gives up leaves its ID in Redis (NoOrphan)
  unsynced      no replica confirms a rename: a failover revives a ticket that
                was used (Once)
A false rule shows that the model is not empty: no hold is ever attached
(reach).
 ***************************************************************************)
EXTENDS Naturals, FiniteSets, TLC

CONSTANTS Procs, MaxIDs, MaxFaults,
          Faults,   \* the kinds of faults: "again", "lost", "failover"
          Mistake   \* the precaution that is omitted, or "none"

VARIABLES
  record,   \* the ID that has the lock, or None
  over,     \* IDs with a tombstone
  copy,     \* record and tombstones, as the replica has them
  st,       \* st[p]: "idle", "taking", "holds", "detaching", "undoOld", "undoID", "attaching", "back", "freeing"
  own,      \* own[p]: the ID with which p holds the lock, or asks for it
  id,       \* id[p]: the detached ID of its Detach or Attach
  made,     \* how many IDs were made
  tickets,  \* the detached IDs that anybody may know
  asks,     \* requests under way: [p, kind, from, to, bury]
  answers,  \* answers under way: [p, kind, from, to, yes]
  faults,
  used,     \* the tickets that were attached
  twice,    \* a ticket was attached twice
  touched,  \* a renewal has extended the lease of a detached hold
  revived   \* a failover has happened

redis   == <<record, over, copy>>
procs   == <<st, own, id, made, tickets>>
network == <<asks, answers>>
counts  == <<faults, used, twice, touched, revived>>
vars    == <<redis, procs, network, counts>>

None   == <<"none", 0>>
Own(k) == <<"own", k>>
ID(k)  == <<"id", k>>

Believes(p) == st[p] = "holds"
Fault(kind) == kind \in Faults /\ faults < MaxFaults /\ faults' = faults + 1

Request(p, kind, from, to, bury) == [p |-> p, kind |-> kind, from |-> from, to |-> to, bury |-> bury]

Answers(a, r) == a.p = r.p /\ a.kind = r.kind /\ a.from = r.from /\ a.to = r.to

Init ==
  /\ record = None /\ over = {} /\ copy = <<None, {}>>
  /\ st = [p \in Procs |-> "idle"] /\ own = [p \in Procs |-> None] /\ id = [p \in Procs |-> None]
  /\ made = 0 /\ tickets = {} /\ asks = {} /\ answers = {}
  /\ faults = 0 /\ used = {} /\ twice = FALSE /\ touched = FALSE /\ revived = FALSE

-----------------------------------------------------------------------------
\* Processes

\* The request that p sends in a state, also if the one before it, or its answer, was lost.
Asked(p, state, o, i) ==
  CASE state = "taking"    -> Request(p, "take", o, None, FALSE)
    [] state = "freeing"   -> Request(p, "free", o, None, TRUE)
    [] state = "detaching" -> Request(p, "rename", o, i, Mistake # "noTombstone")
    [] state = "attaching" -> Request(p, "rename", i, o, FALSE)
    [] state = "undoOld"   -> Request(p, "free", o, None, TRUE)
    [] state = "undoID"    -> Request(p, "free", i, None, FALSE)
    [] state = "back"      -> Request(p, "rename", o, i, Mistake # "notBuried")

\* p goes to a state with these IDs, and sends the request of that state.
Goes(p, state, o, i) ==
  /\ st' = [st EXCEPT ![p] = state] /\ own' = [own EXCEPT ![p] = o] /\ id' = [id EXCEPT ![p] = i]
  /\ asks' = asks \cup {Asked(p, state, o, i)}

Take(p) ==
  /\ st[p] = "idle" /\ made < MaxIDs /\ made' = made + 1
  /\ Goes(p, "taking", Own(made + 1), None)
  /\ UNCHANGED <<redis, tickets, answers, counts>>

Release(p) ==
  /\ st[p] = "holds" /\ Goes(p, "freeing", own[p], None)
  /\ UNCHANGED <<redis, made, tickets, answers, counts>>

Renew(p) ==
  /\ st[p] = "holds"
  /\ asks' = asks \cup {Request(p, "renew", own[p], None, FALSE)}
  /\ UNCHANGED <<redis, procs, answers, counts>>

Detach(p) ==
  /\ st[p] = "holds" /\ made < MaxIDs /\ made' = made + 1
  /\ Goes(p, "detaching", own[p], IF Mistake = "sameField" THEN own[p] ELSE ID(made + 1))
  /\ UNCHANGED <<redis, tickets, answers, counts>>

Attach(p) ==
  /\ st[p] = "idle" /\ made < MaxIDs /\ made' = made + 1
  /\ \E t \in tickets \cup (IF Mistake = "liveTicket" /\ record # None THEN {record} ELSE {}) :
       Goes(p, "attaching", Own(made + 1), t)
  /\ UNCHANGED <<redis, tickets, answers, counts>>

\* The state in which p undoes what it has asked for.
Undoes(state) ==
  CASE state = "taking"    -> "freeing"
    [] state = "detaching" -> IF Mistake = "idFirst" THEN "undoID" ELSE "undoOld"
    [] state = "attaching" -> "back"
    [] OTHER               -> "none"

GiveUp(p) ==
  /\ Undoes(st[p]) # "none"
  /\ IF st[p] = "attaching" /\ Mistake = "noPutBack"
     THEN st' = [st EXCEPT ![p] = "idle"] /\ UNCHANGED <<own, id, asks>>
     ELSE Goes(p, Undoes(st[p]), own[p], id[p])
  /\ UNCHANGED <<redis, made, tickets, answers, counts>>

\* The request of p, or its answer, was lost. p asks again.
Again(p) ==
  /\ st[p] \notin {"idle", "holds"}
  /\ LET r == Asked(p, st[p], own[p], id[p]) IN
       /\ r \notin asks /\ ~\E a \in answers : Answers(a, r)
       /\ asks' = asks \cup {r}
  /\ UNCHANGED <<redis, procs, answers, counts>>

\* p hears an answer. One to another request than that of now is late, and is ignored.
Hear(a) ==
  LET p == a.p r == Asked(p, st[p], own[p], id[p]) IN
  /\ answers' = answers \ {a}
  /\ IF st[p] \in {"idle", "holds"} \/ ~Answers(a, r)
     THEN UNCHANGED <<procs, asks, used, twice>>
     ELSE CASE st[p] \in {"taking", "attaching"} /\ ~a.yes ->
                 Goes(p, Undoes(st[p]), own[p], id[p]) /\ UNCHANGED <<made, tickets, used, twice>>
            [] st[p] \in {"taking", "attaching"} ->
                 /\ st' = [st EXCEPT ![p] = "holds"]
                 /\ used' = IF st[p] = "attaching" THEN used \cup {id[p]} ELSE used
                 /\ twice' = (twice \/ (st[p] = "attaching" /\ id[p] \in used))
                 /\ UNCHANGED <<own, id, made, tickets, asks>>
            [] st[p] = "detaching" ->
                 /\ st' = [st EXCEPT ![p] = "idle"]
                 /\ tickets' = IF a.yes THEN tickets \cup {id[p]} ELSE tickets
                 /\ UNCHANGED <<own, id, made, asks, used, twice>>
            [] st[p] = (IF Mistake = "idFirst" THEN "undoID" ELSE "undoOld") ->
                 Goes(p, IF Mistake = "idFirst" THEN "undoOld" ELSE "undoID", own[p], id[p])
                 /\ UNCHANGED <<made, tickets, used, twice>>
            [] OTHER ->
                 st' = [st EXCEPT ![p] = "idle"] /\ UNCHANGED <<own, id, made, tickets, asks, used, twice>>
  /\ UNCHANGED <<redis, faults, touched, revived>>

-----------------------------------------------------------------------------
\* Redis

Answer(r, yes) == answers' = answers \cup {[p |-> r.p, kind |-> r.kind, from |-> r.from, to |-> r.to, yes |-> yes]}

\* Whether the answer to a request that acquires or renames is yes, and the record after it.
After(r) ==
  CASE r.kind = "take" /\ ((record = None /\ r.from \notin over) \/ record = r.from) -> <<TRUE, r.from>>
    [] r.kind = "rename" /\ record = r.to                        -> <<TRUE, record>>
    [] r.kind = "rename" /\ record = r.from /\ r.to \notin over  ->
         <<TRUE, IF Mistake = "keepsTicket" /\ r.from \in tickets THEN record ELSE r.to>>
    [] r.kind = "free" /\ record = r.from                        -> <<TRUE, None>>
    [] OTHER                                                     -> <<record = r.from, record>>

Run(r) ==
  /\ (asks' = asks \ {r} /\ UNCHANGED faults) \/ (asks' = asks /\ Fault("again"))
  /\ record' = After(r)[2]
  /\ over' = IF r.bury THEN over \cup {r.from} ELSE over
  /\ copy' = IF r.kind = "take" \/ (r.kind = "rename" /\ Mistake # "unsynced") THEN <<record', over'>> ELSE copy
  /\ touched' = (touched \/ (r.kind = "renew" /\ record = r.from /\ record \in tickets))
  /\ IF r.kind = "renew" THEN UNCHANGED answers ELSE Answer(r, After(r)[1])
  /\ UNCHANGED <<procs, used, twice, revived>>

Lose ==
  /\ Fault("lost")
  /\ \/ \E r \in asks : asks' = asks \ {r} /\ UNCHANGED answers
     \/ \E a \in answers : answers' = answers \ {a} /\ UNCHANGED asks
  /\ UNCHANGED <<redis, procs, used, twice, touched, revived>>

\* The lease of an ID with which no process believes that it holds the lock, or may believe it after an answer.
Expire ==
  /\ record # None /\ ~\E p \in Procs : st[p] \in {"holds", "taking", "attaching"} /\ own[p] = record
  /\ record' = None
  /\ UNCHANGED <<over, copy, procs, network, counts>>

Replicate ==
  /\ "failover" \in Faults /\ copy' = <<record, over>> /\ copy' # copy
  /\ UNCHANGED <<record, over, procs, network, counts>>

Failover ==
  /\ Fault("failover")
  /\ record' = copy[1] /\ over' = copy[2] /\ revived' = TRUE
  /\ UNCHANGED <<copy, procs, network, used, twice, touched>>

Next ==
  \/ \E p \in Procs : Take(p) \/ Release(p) \/ Renew(p) \/ Detach(p) \/ Attach(p) \/ GiveUp(p) \/ Again(p)
  \/ \E a \in answers : Hear(a)
  \/ \E r \in asks : Run(r)
  \/ Lose \/ Expire \/ Replicate \/ Failover

Spec == Init /\ [][Next]_vars

-----------------------------------------------------------------------------
\* Rules

S1 == Cardinality({p \in Procs : Believes(p)}) <= 1

\* Nobody takes a hold away from its process.
Has == \A p \in Procs : Believes(p) => record = own[p]

\* A ticket works once.
Once == ~twice

\* No renewal extends the lease of a detached hold.
NotTouched == ~touched

\* A lock is held with an ID that a process uses, or that is in a ticket, so that it does not block others for nobody. A
\* failover may lose a release, and the tombstone with it: then the lease ends the hold.
NoOrphan ==
  \/ record = None \/ revived \/ record \in tickets
  \/ \E p \in Procs : st[p] # "idle" /\ record \in {own[p], id[p]}

\* False.
NeverAttached == used = {}

\* At most three requests and one answer are under way.
Bounds == Cardinality(asks) <= 3 /\ Cardinality(answers) <= 1

Symmetry == Permutations(Procs)
=============================================================================
