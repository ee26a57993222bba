------------------------------- MODULE Trust -------------------------------
(***************************************************************************
Time and trust: how long may a process believe that it holds the lock?

A release grants the record to a waiter with a provisional lease P and
publishes "granted" to it.  The grantee does not know when the script ran.
The script surely ran after the grantee had sent

  - the first request that named the granted field, and
  - each PING on the subscription connection whose answer was read there
    before the message.  Replies and messages of one connection arrive in the
    order in which Redis wrote them.

"proof" is the latest of these send times.  The process trusts the grant until
proof + P.  It trusts the answer "it is yours" until sent + PTTL.

Modelled: one server and one record with its leases and tokens; grants that
lapse; messages that arrive late or are lost with their connection; a
subscription connection that ends at a proxy.  A process may stop between any
two steps, for any time or for ever, because no step is ever forced.  The line
is a set, and any of its places may be next; Line.tla has the order.

Left out: drift (the library takes 1% and 2 ms off each trust), renewals that
lengthen a confirmed lease, and a handover inside a process.  Requests that run
after their sender gave up, and lost answers, belong to Line.tla.

Simplified: a request runs at most Travel after it was sent, because a longer
way only makes the proof older.  The answers "busy" and "released" arrive at
once, because they prove nothing.  A PONG with no message before it arrives at
once, because a later one proves no more.  A proxy stands for each connection
that does not end at the server: a replica, or plain pub/sub of a Cluster.

Bounds.  Trust.cfg: three processes with one wait each; p3 is behind a proxy
and wants a lease of 1; P = 2, Lease = 3, Travel = 0.  Trust-again.cfg: two
processes with two waits each, Travel = 1.  In both, at most two messages to a
process and one answer in all are under way.  Time has no bound: View counts
all times from now, and times too old to matter are the same.
Trust.cfg has about 188,500 distinct states and Trust-again.cfg about 76,400;
the symmetry makes the last digits differ from run to run.  Checked by hand
without a violation: Trust.cfg with Travel = 1 (303,000) and Trust-again.cfg
with P = 3, Lease = 5 (183,000).

Each mistakes/Trust-NAME.cfg seeds a mistake and names the rule that it breaks.
Most make two holders (S1).  Mistakes in what counts as proof:
  arrival        trust counts from the arrival of the grant
  otherPing      a PING on the request connection counts
  overtake       a PONG is handled before a message that arrived first
  laterPing      a PING that is answered after the grant was read counts
  sentPing       a PING counts before it is answered
  oldConnection  the old connection's buffer is read after PINGs on the new one
  proxy          a PING counts that a proxy has answered
  busyCounts     a request that was answered "busy" counts
Mistakes in what is believed, and for how long:
  staleGrant     a grant for a wait that is over is believed
  lateAnswer     an answer for a wait that is over is believed
  republish      a repeated release publishes its grant again
  wholeLease     a grant is trusted for the lease that the waiter asked for
  shortLease     a grant is trusted for P where the lease is shorter
  confirmArrival trust counts from the arrival of "it is yours"
  lateConfirm    a repeated confirmation sets the lease of another field
  confirmLease   "it is yours" is trusted for a whole lease, not for the PTTL
Mistakes that break another rule:
  confirmTwice   a repeated confirmation sets the lease again (SetOnce)
  toAndFro       a process whose grant lapsed is granted again (OneLapse)
  messageToken   after "it is yours", the token of a late grant stays (S6)
Two false rules show that the model is not empty.  TLC must find that each is
violated: no process trusts a grant that it has not confirmed (reach-message),
and no process does so because of a PING (reach-ping).

The model taught four things.
  - A repeated release must not publish its grant again.  The second message
    may arrive behind a PING that was sent after the grant, so the PING seems
    to prove what it does not.  This holds for all that passes a message on
    later: a replica, a proxy, a buffer.
  - A PING that was answered before a reconnect is good proof for a grant on
    the new connection, because only later grants arrive there.  The danger is a grant from the buffer of the old
    connection that is read after a PING on the new one.
  - The first request that named the field is proof on any connection, also
    behind a proxy, because the grant cannot come before its field was named.
    Only PINGs need a connection that ends at the server.
  - A field may be granted, lapse, and take the lock by asking.  The token is
    then the one of the answer, whatever message arrives in between.
***************************************************************************)
EXTENDS Integers, Sequences, FiniteSets, TLC

CONSTANTS
  Procs,    \* the processes
  Proxied,  \* the processes whose subscription connection ends at a proxy
  Short,    \* the processes that want a lease of 1; the others want Lease
  P,        \* the provisional lease of a grant, more than 1
  Lease,    \* a lease longer than P
  Travel,   \* the longest way of a request to the server
  Waits,    \* the number of waits of one process
  Mistake,  \* the seeded mistake, or "none"
  None      \* no field, no answer

VARIABLES
  now,      \* the time; all clocks agree

  rec,      \* the record: field, end of the lease, confirmed, token
  line,     \* the fields that stand in line
  lapses,   \* process -> number of its grants in a row that lapsed unconfirmed
  drawn,    \* the last token that was drawn

  n,        \* process -> number of its last wait; <<p, n[p]>> is the field of the wait
  phase,    \* process -> "idle", "wait" or "hold"
  proof,    \* process -> latest send time that lies before any grant of its field
  trust,    \* process -> time at which it stops believing that it holds
  token,    \* process -> token with which it holds

  answer,   \* process -> the answer under way on its request connection, or None
  sub,      \* process -> the messages and PONGs under way on its subscription connection
  old       \* process -> what the connection before had not delivered, for "oldConnection"

server  == <<rec, line, lapses, drawn>>
process == <<n, phase, proof, trust, token>>
network == <<answer, sub, old>>
vars    == <<now, server, process, network>>

Max(a, b)   == IF a > b THEN a ELSE b
Field(p)    == <<p, n[p]>>
LeaseOf(p)  == IF p \in Short THEN 1 ELSE Lease
GrantOf(p)  == IF p \in Short THEN 1 ELSE P
Free        == [field |-> None, end |-> 0, confirmed |-> FALSE, token |-> 0]
Believes(p) == phase[p] = "hold" /\ now < trust[p]
Sent        == {now - t : t \in 0..Travel}

Init ==
  /\ now = 0 /\ rec = Free /\ line = {} /\ drawn = 0
  /\ lapses = [p \in Procs |-> 0]
  /\ n      = [p \in Procs |-> 0]
  /\ phase  = [p \in Procs |-> "idle"]
  /\ proof  = [p \in Procs |-> 0]
  /\ trust  = [p \in Procs |-> 0]
  /\ token  = [p \in Procs |-> 0]
  /\ answer = [p \in Procs |-> None]
  /\ sub    = [p \in Procs |-> <<>>]
  /\ old    = [p \in Procs |-> <<>>]

-----------------------------------------------------------------------------
\* The scripts of the server

\* The record gets a new field with a token of its own.
Write(f, lease, confirmed) ==
  /\ drawn' = drawn + 1
  /\ rec' = [field |-> f, end |-> now + lease, confirmed |-> confirmed, token |-> drawn + 1]

\* The fields, other than f, that may be granted by message.
Candidates(f) == {g \in line \ {f} : lapses[g[1]] = 0 \/ Mistake = "toAndFro"}

\* The message goes to the process of the field.
Publish(f, tok) ==
  sub' = [sub EXCEPT ![f[1]] = Append(@, [kind |-> "granted", n |-> f[2], sent |-> 0, token |-> tok])]

\* The record is written and the grant is published in one script.
Grant(f) == Write(f, GrantOf(f[1]), FALSE) /\ Publish(f, drawn + 1)

\* The answer "it is yours" goes back to the process.
Yours(p, num, sent, pttl, tok) ==
  answer' = [answer EXCEPT ![p] = [n |-> num, sent |-> sent, pttl |-> pttl, token |-> tok]]

\* f has the record: the first confirmation sets the lease, each reports what is left.
RunConfirm(p, f, sent) ==
  /\ rec.field = f
  /\ LET sets == p \notin Short /\ (~rec.confirmed \/ Mistake = "confirmTwice")
         end  == IF sets THEN now + Lease ELSE rec.end
     IN rec' = [rec EXCEPT !.end = end, !.confirmed = TRUE] /\ Yours(p, f[2], sent, end - now, rec.token)
  /\ line' = line \ {f}
  /\ lapses' = [lapses EXCEPT ![p] = 0]
  /\ UNCHANGED <<drawn, sub>>

\* The record is free and f is next: f takes it.
RunTake(p, f, sent) ==
  /\ rec.field = None
  /\ f \in line \/ Candidates(f) = {}
  /\ Write(f, LeaseOf(p), TRUE) /\ Yours(p, f[2], sent, LeaseOf(p), drawn + 1)
  /\ line' = line \ {f}
  /\ lapses' = [lapses EXCEPT ![p] = 0]
  /\ UNCHANGED sub

\* Another field has the record, or gets it now: f stands in line.
RunBusy(p, f) ==
  /\ \/ rec.field \notin {None, f} /\ UNCHANGED <<rec, drawn, sub>>
     \/ rec.field = None /\ \E g \in Candidates(f) : Grant(g)
  /\ line' = line \cup {f}
  /\ UNCHANGED <<lapses, answer>>

-----------------------------------------------------------------------------
\* Time, processes and connections

\* Time goes on. A record whose lease ends disappears.
Tick ==
  /\ now' = now + 1
  /\ IF rec.field # None /\ rec.end = now'
     THEN /\ rec' = Free
          /\ lapses' = IF rec.confirmed THEN lapses ELSE [lapses EXCEPT ![rec.field[1]] = @ + 1]
     ELSE UNCHANGED <<rec, lapses>>
  /\ UNCHANGED <<line, drawn, process, network>>

\* A request sent then ran before any grant that the process reads from now on.
Prove(p, sent) == proof' = [proof EXCEPT ![p] = Max(@, sent)]

\* A process begins to wait. Its first request names a fresh field.
Lock(p) ==
  /\ phase[p] = "idle" /\ n[p] < Waits
  /\ n' = [n EXCEPT ![p] = @ + 1]
  /\ phase' = [phase EXCEPT ![p] = "wait"]
  /\ \E sent \in Sent :
       /\ proof' = [proof EXCEPT ![p] = sent]
       /\ RunTake(p, Field(p)', sent) \/ RunBusy(p, Field(p)')
  /\ UNCHANGED <<now, trust, token, old>>

\* A waiter asks again.
Ask(p) ==
  /\ phase[p] = "wait" /\ answer[p] = None
  /\ \E sent \in Sent :
       \/ (RunConfirm(p, Field(p), sent) \/ RunTake(p, Field(p), sent)) /\ UNCHANGED proof
       \/ RunBusy(p, Field(p)) /\ IF Mistake = "busyCounts" THEN Prove(p, sent) ELSE UNCHANGED proof
  /\ UNCHANGED <<now, n, phase, trust, token, old>>

\* A holder confirms, once or more often.
Confirm(p) ==
  /\ Believes(p) /\ answer[p] = None
  /\ \E sent \in Sent : RunConfirm(p, Field(p), sent)
  /\ UNCHANGED <<now, process, old>>

\* A process releases or gives up. The script grants the record to another field, or deletes it.
Unlock(p) ==
  /\ phase[p] \in {"wait", "hold"}
  /\ phase' = [phase EXCEPT ![p] = "idle"]
  /\ trust' = [trust EXCEPT ![p] = 0] /\ token' = [token EXCEPT ![p] = 0]
  /\ line' = line \ {Field(p)}
  /\ \/ rec.field # Field(p) /\ UNCHANGED <<rec, drawn, sub>>
     \/ rec.field = Field(p) /\ \E g \in Candidates(Field(p)) : Grant(g)
     \/ rec.field = Field(p) /\ Candidates(Field(p)) = {} /\ rec' = Free /\ UNCHANGED <<drawn, sub>>
  /\ answer' = IF Mistake = "lateAnswer" THEN answer ELSE [answer EXCEPT ![p] = None]
  /\ UNCHANGED <<now, lapses, n, proof, old>>

\* A waiter pings over its subscription connection. A proxy answers by itself, before what it still has to pass on.
Ping(p) ==
  /\ phase[p] = "wait"
  /\ p \notin Proxied \/ Mistake = "proxy"
  /\ \E sent \in Sent :
       IF sub[p] = <<>> \/ p \in Proxied
       THEN Prove(p, sent) /\ UNCHANGED sub
       ELSE /\ \A i \in DOMAIN sub[p] : sub[p][i].kind # "pong"
            /\ sub' = [sub EXCEPT ![p] = Append(@, [kind |-> "pong", n |-> 0, sent |-> sent, token |-> 0])]
            /\ IF Mistake = "sentPing" THEN Prove(p, sent) ELSE UNCHANGED proof
  /\ UNCHANGED <<now, server, n, phase, trust, token, answer, old>>

\* The process believes until the given time, if that is not over.
Hold(p, until, tok) ==
  IF until > now
  THEN /\ phase' = [phase EXCEPT ![p] = "hold"]
       /\ trust' = [trust EXCEPT ![p] = Max(@, until)]
       /\ token' = [token EXCEPT ![p] = tok]
  ELSE UNCHANGED <<phase, trust, token>>

\* "It is yours" arrives.
ReadAnswer(p) ==
  LET a == answer[p] IN
  /\ a # None
  /\ answer' = [answer EXCEPT ![p] = None]
  /\ IF (phase[p] = "wait" /\ (a.n = n[p] \/ Mistake = "lateAnswer")) \/ Believes(p)
     THEN Hold(p, CASE Mistake = "confirmArrival" -> now + a.pttl
                    [] Mistake = "confirmLease" -> a.sent + LeaseOf(p)
                    [] OTHER -> a.sent + a.pttl,
               IF Mistake = "messageToken" /\ token[p] # 0 THEN token[p] ELSE a.token)
     ELSE UNCHANGED <<phase, trust, token>>
  /\ UNCHANGED <<now, server, n, proof, sub, old>>

\* "Granted" is read. It counts for the present wait only.
ReadGrant(p, m) ==
  /\ IF phase[p] = "wait" /\ (m.n = n[p] \/ Mistake = "staleGrant")
     THEN LET until == CASE Mistake = "arrival" -> now + GrantOf(p)
                         [] Mistake = "wholeLease" -> proof[p] + LeaseOf(p)
                         [] Mistake = "shortLease" -> proof[p] + P
                         [] OTHER -> proof[p] + GrantOf(p)
          IN IF Mistake = "messageToken" /\ until <= now
             THEN token' = [token EXCEPT ![p] = m.token] /\ UNCHANGED <<phase, trust>>
             ELSE Hold(p, until, m.token)
     ELSE UNCHANGED <<phase, trust, token>>
  /\ UNCHANGED proof

\* A PONG is read. It counts if no grant was read before.
ReadPong(p, m) ==
  /\ IF phase[p] = "wait" THEN Prove(p, m.sent) ELSE UNCHANGED proof
  /\ trust' = IF Mistake = "laterPing" /\ Believes(p) THEN [trust EXCEPT ![p] = Max(@, m.sent + P)] ELSE trust
  /\ UNCHANGED <<phase, token>>

\* The subscription connection delivers the first of what is under way on it.
Read(p) ==
  /\ sub[p] # <<>>
  /\ sub' = [sub EXCEPT ![p] = Tail(@)]
  /\ IF Head(sub[p]).kind = "granted" THEN ReadGrant(p, Head(sub[p])) ELSE ReadPong(p, Head(sub[p]))
  /\ UNCHANGED <<now, server, n, answer, old>>

\* The subscription connection is lost with what is under way on it. There is a new one.
Reconnect(p) ==
  /\ sub[p] # <<>>
  /\ sub' = [sub EXCEPT ![p] = <<>>]
  /\ old' = IF Mistake = "oldConnection" THEN [old EXCEPT ![p] = sub[p]] ELSE old
  /\ UNCHANGED <<now, server, process, answer>>

-----------------------------------------------------------------------------
\* Steps that only a mistake makes

\* "otherPing": the answer to a PING on the request connection counts.
PingRequests(p) ==
  /\ Mistake = "otherPing" /\ phase[p] = "wait"
  /\ \E sent \in Sent : Prove(p, sent)
  /\ UNCHANGED <<now, server, n, phase, trust, token, network>>

\* "overtake": a PONG is read before a message that stands in front of it.
ReadAhead(p) ==
  /\ Mistake = "overtake" /\ Len(sub[p]) > 1 /\ sub[p][2].kind = "pong"
  /\ ReadPong(p, sub[p][2])
  /\ sub' = [sub EXCEPT ![p] = <<Head(@)>> \o Tail(Tail(@))]
  /\ UNCHANGED <<now, server, n, answer, old>>

\* "oldConnection": what the connection before a reconnect had buffered is read later.
ReadOld(p) ==
  /\ old[p] # <<>>
  /\ old' = [old EXCEPT ![p] = Tail(@)]
  /\ IF Head(old[p]).kind = "granted" THEN ReadGrant(p, Head(old[p])) ELSE UNCHANGED <<phase, proof, trust, token>>
  /\ UNCHANGED <<now, server, n, answer, sub>>

\* "republish": the release is repeated and publishes its grant again.
Republish ==
  /\ Mistake = "republish" /\ rec.field # None /\ ~rec.confirmed
  /\ Publish(rec.field, rec.token)
  /\ UNCHANGED <<now, server, process, answer, old>>

\* "lateConfirm": a repeated confirmation runs after the release and sets the lease of the next holder.
LateConfirm(p) ==
  /\ Mistake = "lateConfirm" /\ phase[p] = "idle" /\ n[p] > 0 /\ rec.field # None
  /\ rec' = [rec EXCEPT !.end = now + LeaseOf(p)]
  /\ UNCHANGED <<now, line, lapses, drawn, process, network>>

-----------------------------------------------------------------------------
Next ==
  \/ Tick
  \/ \E p \in Procs :
       \/ Lock(p) \/ Ask(p) \/ Confirm(p) \/ Unlock(p) \/ Ping(p)
       \/ ReadAnswer(p) \/ Read(p) \/ Reconnect(p)
       \/ PingRequests(p) \/ ReadAhead(p) \/ ReadOld(p) \/ LateConfirm(p)
  \/ Republish

Spec == Init /\ [][Next]_vars

-----------------------------------------------------------------------------
\* The rules

\* One process at most believes that it holds.
S1 == \A p, q \in Procs : Believes(p) /\ Believes(q) => p = q

\* The record has the field of a process that believes.
S2 == \A p \in Procs : Believes(p) => rec.field = Field(p)

\* A process that believes has the largest token that was drawn.
S6 == \A p \in Procs : Believes(p) => token[p] = drawn

\* A process lets one grant lapse at most before it has taken or confirmed by asking.
OneLapse == \A p \in Procs : lapses[p] <= 1

\* The end of a lease moves once at most, and never for a lease that the grant gave in full.
Fixed   == rec.confirmed \/ (rec.field # None /\ rec.field[1] \in Short)
SetOnce == [][(Fixed /\ rec'.token = rec.token) => rec'.end = rec.end]_vars

\* Not a rule: no process trusts a grant that it has not confirmed.
ReachMessage == \A p \in Procs : ~(Believes(p) /\ ~rec.confirmed)

\* Not a rule, if all waits begin at 0 (Early): none trusts such a grant later than its first request allows.
ReachPing == \A p \in Procs : ~(Believes(p) /\ ~rec.confirmed /\ now >= P)

-----------------------------------------------------------------------------
\* For TLC: bounds, and which states are the same

Bounds ==
  /\ \A p \in Procs : Len(sub[p]) <= 2
  /\ Cardinality({p \in Procs : answer[p] # None}) <= 1

Early == Bounds /\ \A p \in Procs : n[p] = 0 => now = 0

\* The age of t, up to the age from which on it makes no difference.
Age(t, most) == IF t > now - most THEN now - t ELSE most
Left(t)      == IF t > now THEN t - now ELSE 0

\* A message changes nothing if its wait is over. A PONG changes nothing if it is older than the proof.
ViewOf(p, m) ==
  CASE phase[p] # "wait" \/ (m.kind = "granted" /\ m.n # n[p]) -> <<>>
    [] m.kind = "pong" -> <<Age(Max(m.sent, proof[p]), P)>>
    [] OTHER -> <<"granted", m.token = drawn>>

\* Times count from now, tokens are the last one or not. Values that no step can use any more are left out.
View == <<
  rec.field, Left(rec.end), rec.confirmed, line, n, phase,
  [p \in Procs |-> IF phase[p] = "idle" /\ n[p] = Waits THEN 0 ELSE lapses[p]],
  [p \in Procs |-> <<
     IF phase[p] = "wait" THEN Age(proof[p], P) ELSE 0,
     IF Believes(p) THEN <<trust[p] - now, token[p] = drawn>> ELSE <<>>,
     IF answer[p] = None THEN None
     ELSE LET left == Left(answer[p].sent + answer[p].pttl) IN <<left, left > 0 /\ answer[p].token = drawn>>,
     [i \in DOMAIN sub[p] |-> ViewOf(p, sub[p][i])],
     [i \in DOMAIN old[p] |-> ViewOf(p, old[p][i])]>>]
  >>

\* Processes of one kind may change places.
Symmetry == Permutations(Procs \ (Proxied \cup Short))
=============================================================================
