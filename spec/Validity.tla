------------------------------- MODULE Validity -------------------------------
(***************************************************************************
Time and validity: how long may a process believe that it holds the lock?

A release grants the record to a waiter with a provisional lease P and
publishes "granted" to it.  The waiter does not know when the script ran.  But
each request of a wait has a number, its place in the line (the wait queue in
Redis) notes the number of the last request that ran, and the grant names it.
So the script ran after the process had sent that request, and the grant is
valid until that send time + the lease in the message.  The number stands for
the send time, so the module uses the send time itself.  The answer "it is
yours" is valid until the request was sent + the lease that it asked for: the
script sets the lease of the record, unless it is longer.

Modelled: one server and one record with its leases and tokens; grants that
expire; messages that arrive late, twice, in any order, or never; a field that
is handed off to another goroutine of its process.  A process may be paused
between any two steps, for any time or for ever, because no step is ever
forced.  Any place may be next; Line.tla has the order.

Left out: drift (the library takes 1% and 2 ms off each validity), and
forgotten numbers (a process keeps the last two; it confirms any other grant).
Requests that run after their sender gave up, lost answers and crashed
processes belong to Line.tla.

Simplified: a request runs at most Travel after it was sent, because a longer
way only makes the send time older.  The answer "busy" arrives at once,
because it proves nothing.  Each record has one token: the script draws a new
one for each "it is yours", but no other record has one in between.

Bounds.  Validity.cfg: three processes with one wait each; p3 needs a lease of
1; P = 2, Lease = 3, Travel = 0.  Validity-again.cfg: two processes with two
waits each, Travel = 1.  In both, at most two messages to a process and one
answer in all are under way.  Time has no bound: View counts all times from
now, and times too old to matter are the same.  Validity.cfg has about 266,000
distinct states and Validity-again.cfg about 48,000; the symmetry makes the
last digits differ from run to run.

Each mistakes/Validity-NAME.cfg seeds a mistake and names the rule that it
breaks.  Most make two holders (S1).  Mistakes in when validity begins:
  arrival        when the grant arrives
  busyCounts     with the last request that was answered "busy"
  lastAsk        with the last request that was sent
  restart        the numbers of a field begin again with another goroutine
Mistakes in which grants are valid, and for how long:
  staleGrant     a grant for a wait that has ended is believed
  lateAnswer     an answer for a wait that has ended is believed
  wholeLease     a grant is valid for the lease that the waiter asked for
  shortLease     a grant is valid for P although its lease is shorter
  confirmArrival validity counts from the arrival of "it is yours"
  confirmLease   "it is yours" leaves the lease as it is
  lateConfirm    a repeated confirmation sets the lease of another field
Mistakes that break another rule:
  confirmTwice   a repeated confirmation sets the short lease (NotShorter)
  toAndFro       a process that was late gets short grants, too (OneExpiry)
  messageToken   after "it is yours", the token of a late grant stays (S6)
Two false rules show that the model is not empty.  TLC must find that each is
violated: no process believes in a grant that it has not confirmed
(reach-message), and none does so for longer than its first request allows
(reach-again).

What the model showed:
  - A grant may be made, expire, and arrive after a later request was answered
    "busy".  It names the older request, so it is too old.  No request proves
    anything about a grant that does not name it.
  - A message may come twice, late, or by way of a proxy or a replica: it stays
    true.  So nothing depends on the connection that it came on.
  - The numbers of a field never begin again.  A goroutine that takes a field
    over must not count from 1, or a late grant names one of its own requests.
    (The library draws the numbers at random.)
  - "It is yours" may set the lease again, as often as a process asks: the
    field has the record all the time, so only its own lease grows.  To shorten
    the lease is wrong, because the process may rely on the longer one.
  - A field may be granted the lock, expire, and take the lock by asking.  The
    token is then the one of the answer, whatever message arrives in between.
 ***************************************************************************)
EXTENDS Integers, FiniteSets, TLC

CONSTANTS
  Procs,    \* the processes
  Short,    \* the processes that need a lease of 1; the others need Lease
  P,        \* the provisional lease of a grant, more than 1
  Lease,    \* a lease longer than P
  Travel,   \* the longest way of a request to the server
  Waits,    \* the number of waits of one process
  Mistake,  \* the seeded mistake, or "none"
  None      \* no field, no answer

VARIABLES
  now,      \* the time; all clocks agree

  rec,      \* the record: field, end of the lease, confirmed, token
  place,    \* process -> its place: kind, and send time of the last request that ran
  expiries, \* process -> short grants that expired unconfirmed since it has learned that it was late; -1: it has not
  drawn,    \* the last token that was drawn

  n,        \* process -> number of its last wait; <<p, n[p]>> is the field of the wait
  phase,    \* process -> "idle", "wait" or "hold"
  validUntil, \* process -> time at which it stops believing that it holds the lock
  token,    \* process -> token with which it holds the lock
  last,     \* process -> send time from which three of the mistakes count

  answer,   \* process -> "it is yours" under way, or None
  msgs      \* the grants under way

server  == <<rec, place, expiries, drawn>>
process == <<n, phase, validUntil, token, last>>
network == <<answer, msgs>>
vars    == <<now, server, process, network>>

Max(a, b)   == IF a > b THEN a ELSE b
Field(p)    == <<p, n[p]>>
LeaseOf(p)  == IF p \in Short THEN 1 ELSE Lease
GrantOf(p)  == IF p \in Short THEN 1 ELSE P
Free        == [field |-> None, end |-> 0, confirmed |-> FALSE, token |-> 0]
Mine(p)     == rec.field = Field(p)
Believes(p) == phase[p] = "hold" /\ now < validUntil[p]
Sent        == {now - t : t \in 0..Travel} \* when a request may have been sent that runs now

(* A place is "late" if its process has asked since it has learned that it was late for a grant: its next grant has its
   whole lease. Else it is "new". It is of no use any more while its process holds the lock that it was granted. *)
NoPlace == [kind |-> "none", sent |-> 0]

Init ==
  /\ now = 0 /\ rec = Free /\ drawn = 0
  /\ place  = [p \in Procs |-> NoPlace]
  /\ expiries = [p \in Procs |-> -1]
  /\ n      = [p \in Procs |-> 0]
  /\ phase  = [p \in Procs |-> "idle"]
  /\ validUntil = [p \in Procs |-> 0]
  /\ token  = [p \in Procs |-> 0]
  /\ last   = [p \in Procs |-> 0]
  /\ answer = [p \in Procs |-> None]
  /\ msgs   = {}

-----------------------------------------------------------------------------
\* The scripts of the server

\* The record gets the field of p, with a token of its own.
Write(p, lease, confirmed) ==
  /\ drawn' = drawn + 1
  /\ rec' = [field |-> Field(p), end |-> now + lease, confirmed |-> confirmed, token |-> drawn + 1]

\* The processes, other than p, that may be granted the lock by message.
Candidates(p) == {q \in Procs \ {p} : place[q].kind # "none"}

\* The message names the last request of q that ran: here by its send time.
Message(q, lease, tok) == [p |-> q, n |-> n[q], sent |-> place[q].sent, lease |-> lease, token |-> tok]

\* The lease of a grant to q.
Granted(q) == IF place[q].kind = "late" /\ Mistake # "toAndFro" THEN LeaseOf(q) ELSE GrantOf(q)

\* The record is written and the grant is published in one script.
Grant(q) == Write(q, Granted(q), FALSE) /\ msgs' = msgs \cup {Message(q, Granted(q), drawn + 1)}

\* The answer "it is yours", to a request sent then: the lease that it asked for has begun since.
Yours(p, sent, tok) == answer' = [answer EXCEPT ![p] = [n |-> n[p], until |-> sent + LeaseOf(p), token |-> tok]]

\* p has the record: its lease is set, unless it is longer.
RunConfirm(p, sent) ==
  /\ Mine(p)
  /\ LET end == CASE Mistake = "confirmLease" -> rec.end
                  [] Mistake = "confirmTwice" /\ rec.confirmed -> now + GrantOf(p)
                  [] OTHER -> Max(rec.end, now + LeaseOf(p))
     IN rec' = [rec EXCEPT !.end = end, !.confirmed = TRUE]
  /\ Yours(p, sent, rec.token)
  /\ expiries' = [expiries EXCEPT ![p] = -1]
  /\ UNCHANGED <<place, drawn, msgs>>

\* The record is free and p is next: it takes the lock.
RunTake(p, sent) ==
  /\ rec.field = None
  /\ place[p].kind # "none" \/ Candidates(p) = {}
  /\ Write(p, LeaseOf(p), TRUE) /\ Yours(p, sent, drawn + 1)
  /\ place' = [place EXCEPT ![p] = NoPlace]
  /\ expiries' = [expiries EXCEPT ![p] = -1]
  /\ UNCHANGED msgs

\* Another process has the record, or gets it now: p has a place, which notes this request.
RunBusy(p, sent) ==
  /\ \/ rec.field # None /\ ~Mine(p) /\ UNCHANGED <<rec, drawn, msgs>>
     \/ rec.field = None /\ \E q \in Candidates(p) : Grant(q)
  /\ place' = [place EXCEPT ![p] = [kind |-> IF expiries[p] < 0 THEN "new" ELSE "late", sent |-> sent]]
  /\ last' = IF Mistake = "busyCounts" THEN [last EXCEPT ![p] = sent] ELSE last
  /\ UNCHANGED <<expiries, answer>>

-----------------------------------------------------------------------------
\* Time, processes and messages

\* Time goes on. A record whose lease expires disappears.
Tick ==
  /\ now' = now + 1
  /\ IF rec.field # None /\ rec.end = now'
     THEN LET p == rec.field[1] IN
       /\ rec' = Free
       /\ expiries' = IF rec.confirmed \/ expiries[p] < 0 \/ (place[p].kind = "late" /\ Mistake # "toAndFro") THEN expiries
                    ELSE [expiries EXCEPT ![p] = @ + 1]
       /\ place' = [place EXCEPT ![p] = NoPlace]
     ELSE UNCHANGED <<rec, expiries, place>>
  /\ UNCHANGED <<drawn, process, network>>

\* A process begins to wait, with a fresh field.
Lock(p) ==
  /\ phase[p] = "idle" /\ n[p] < Waits
  /\ n' = [n EXCEPT ![p] = @ + 1]
  /\ phase' = [phase EXCEPT ![p] = "wait"]
  /\ UNCHANGED <<now, server, validUntil, token, last, network>>

\* A waiter asks, once or more often.
Ask(p) ==
  /\ phase[p] = "wait" /\ answer[p] = None
  /\ \E sent \in Sent : ((RunConfirm(p, sent) \/ RunTake(p, sent)) /\ UNCHANGED last) \/ RunBusy(p, sent)
  /\ UNCHANGED <<now, n, phase, validUntil, token>>

\* A holder confirms, once or more often.
Confirm(p) ==
  /\ Believes(p) /\ answer[p] = None
  /\ \E sent \in Sent : RunConfirm(p, sent)
  /\ UNCHANGED <<now, process>>

\* A holder hands the lock off to a goroutine behind it, which keeps the field, and asks.
HandOff(p) ==
  /\ Believes(p)
  /\ phase' = [phase EXCEPT ![p] = "wait"]
  /\ validUntil' = [validUntil EXCEPT ![p] = 0] /\ token' = [token EXCEPT ![p] = 0]
  /\ last' = IF Mistake = "restart" THEN [last EXCEPT ![p] = now] ELSE last
  /\ UNCHANGED <<now, server, n, network>>

\* A process releases or gives up. The script grants the record to another process, or deletes it.
Unlock(p) ==
  /\ phase[p] \in {"wait", "hold"}
  /\ phase' = [phase EXCEPT ![p] = "idle"]
  /\ validUntil' = [validUntil EXCEPT ![p] = 0] /\ token' = [token EXCEPT ![p] = 0]
  /\ place' = [place EXCEPT ![p] = NoPlace] /\ expiries' = [expiries EXCEPT ![p] = -1]
  /\ \/ ~Mine(p) /\ UNCHANGED <<rec, drawn, msgs>>
     \/ Mine(p) /\ \E q \in Candidates(p) : Grant(q)
     \/ Mine(p) /\ Candidates(p) = {} /\ rec' = Free /\ UNCHANGED <<drawn, msgs>>
  /\ answer' = IF Mistake = "lateAnswer" THEN answer ELSE [answer EXCEPT ![p] = None]
  /\ UNCHANGED <<now, n, last>>

\* The process believes until the given time, if that is in the future.
Hold(p, until, tok) ==
  IF until > now
  THEN /\ phase' = [phase EXCEPT ![p] = "hold"]
       /\ validUntil' = [validUntil EXCEPT ![p] = Max(@, until)]
       /\ token' = [token EXCEPT ![p] = tok]
  ELSE UNCHANGED <<phase, validUntil, token>>

\* "It is yours" arrives.
ReadAnswer(p) ==
  LET a == answer[p] IN
  /\ a # None
  /\ answer' = [answer EXCEPT ![p] = None]
  /\ IF (phase[p] = "wait" /\ (a.n = n[p] \/ Mistake = "lateAnswer")) \/ Believes(p)
     THEN Hold(p, IF Mistake = "confirmArrival" THEN now + LeaseOf(p) ELSE a.until,
               IF Mistake = "messageToken" /\ token[p] # 0 THEN token[p] ELSE a.token)
     ELSE UNCHANGED <<phase, validUntil, token>>
  /\ UNCHANGED <<now, server, n, last, msgs>>

\* A grant is read. It counts for the present wait only. If it is too old, the process learns that it was late.
ReadGrant(m) ==
  LET p     == m.p
      from  == CASE Mistake = "arrival" -> now
                 [] Mistake \in {"busyCounts", "lastAsk"} -> last[p]
                 [] Mistake = "restart" -> Max(m.sent, last[p])
                 [] OTHER -> m.sent
      lease == CASE Mistake = "wholeLease" -> LeaseOf(p)
                 [] Mistake = "shortLease" -> P
                 [] OTHER -> m.lease
  IN
  /\ msgs' = msgs \ {m}
  /\ IF phase[p] = "wait" /\ (m.n = n[p] \/ Mistake = "staleGrant")
     THEN IF Mistake = "messageToken" /\ from + lease <= now
          THEN token' = [token EXCEPT ![p] = m.token] /\ UNCHANGED <<phase, validUntil>>
          ELSE Hold(p, from + lease, m.token)
     ELSE UNCHANGED <<phase, validUntil, token>>
  /\ expiries' = IF phase[p] = "wait" /\ m.n = n[p] /\ from + lease <= now THEN [expiries EXCEPT ![p] = Max(@, 0)] ELSE expiries
  /\ UNCHANGED <<now, rec, place, drawn, n, last, answer>>

\* A grant is lost with its connection.
LoseGrant(m) == msgs' = msgs \ {m} /\ UNCHANGED <<now, server, process, answer>>

\* The grant comes twice: a proxy, a replica or a repeated release publishes it again.
Republish ==
  /\ rec.field # None /\ ~rec.confirmed
  /\ LET p == rec.field[1] IN msgs' = msgs \cup {Message(p, Granted(p), rec.token)}
  /\ UNCHANGED <<now, server, process, answer>>

-----------------------------------------------------------------------------
\* Steps that only a mistake makes

\* "lastAsk": a request that is lost, or runs later, counts.
Send(p) ==
  /\ Mistake = "lastAsk" /\ phase[p] = "wait"
  /\ last' = [last EXCEPT ![p] = now]
  /\ UNCHANGED <<now, server, n, phase, validUntil, token, network>>

\* "lateConfirm": a repeated confirmation runs after the release and sets the lease of the next holder.
LateConfirm(p) ==
  /\ Mistake = "lateConfirm" /\ phase[p] = "idle" /\ n[p] > 0 /\ rec.field # None
  /\ rec' = [rec EXCEPT !.end = now + LeaseOf(p)]
  /\ UNCHANGED <<now, place, expiries, drawn, process, network>>

-----------------------------------------------------------------------------
Next ==
  \/ Tick
  \/ \E p \in Procs : Lock(p) \/ Ask(p) \/ Confirm(p) \/ HandOff(p) \/ Unlock(p) \/ ReadAnswer(p) \/ Send(p) \/ LateConfirm(p)
  \/ \E m \in msgs : ReadGrant(m) \/ LoseGrant(m)
  \/ Republish

Spec == Init /\ [][Next]_vars

-----------------------------------------------------------------------------
\* The rules

\* At most one process believes that it holds the lock.
S1 == \A p, q \in Procs : Believes(p) /\ Believes(q) => p = q

\* The record has the field of a process that believes.
S2 == \A p \in Procs : Believes(p) => Mine(p)

\* A process that believes has the largest token that was drawn.
S6 == \A p \in Procs : Believes(p) => token[p] = drawn

\* A process that has learned that it was late lets at most one short grant more expire, which was on its way.
OneExpiry == \A p \in Procs : expiries[p] <= 1

\* A lease is never shortened.
NotShorter == [][rec'.token = rec.token => rec'.end >= rec.end]_vars

\* Not a rule: no process believes in a grant that it has not confirmed.
ReachMessage == \A p \in Procs : ~(Believes(p) /\ ~rec.confirmed)

\* Not a rule, if all waits ask first at 0 (Early): no process believes in such a grant for
\* longer than its first request allows.
ReachAgain == \A p \in Procs : ~(Believes(p) /\ ~rec.confirmed /\ now >= Lease)

-----------------------------------------------------------------------------
\* For TLC: bounds, and which states are the same

\* The age of t, up to the age from which on it makes no difference.
Age(t, most) == IF t > now - most THEN now - t ELSE most
Left(t)      == IF t > now THEN t - now ELSE 0

\* A message changes nothing if its wait has ended, or if it is too old. Tokens are the last one or not.
Late(m)   == m.sent + m.lease <= now /\ Mistake = "none" /\ expiries[m.p] >= 0
MsgsTo(p) == {<<Age(m.sent, Lease), m.lease, m.token = drawn>> :
                m \in {m \in msgs : m.p = p /\ m.n = n[p] /\ phase[p] = "wait" /\ ~Late(m)}}

Bounds ==
  /\ \A p \in Procs : Cardinality(MsgsTo(p)) <= 2
  /\ Cardinality({p \in Procs : answer[p] # None}) <= 1

Early == Bounds /\ \A p \in Procs : n[p] = 0 \/ (phase[p] = "wait" /\ place[p].kind = "none") => now = 0

\* Times count from now. Values that no step can use any more are left out.
View == <<
  rec.field, Left(rec.end), rec.confirmed, n, phase,
  [p \in Procs |-> <<
     expiries[p], place[p].kind, IF p \in Candidates(None) /\ ~(Mine(p) /\ rec.confirmed) THEN Age(place[p].sent, Lease) ELSE 0,
     Age(last[p], Lease),
     IF Believes(p) THEN <<validUntil[p] - now, token[p] = drawn>> ELSE <<>>,
     IF answer[p] = None THEN None
     ELSE LET left == Left(answer[p].until) IN <<left, left > 0 /\ answer[p].token = drawn>>,
     MsgsTo(p)>>]
  >>

\* Processes of one kind may change places.
Symmetry == Permutations(Procs \ Short)
=============================================================================
