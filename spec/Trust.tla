------------------------------- MODULE Trust -------------------------------
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
  trust,    \* process -> time at which it stops to believe that it holds
  token,    \* process -> token with which it holds

  answer,   \* process -> the answer under way on its request connection, or None
  sub,      \* process -> the messages and PONGs under way on its subscription connection
  old       \* process -> the messages that the connection before had not delivered

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
\* What scripts do

\* The record gets a new field with a token of its own.
Write(f, lease, confirmed) ==
  /\ drawn' = drawn + 1
  /\ rec' = [field |-> f, end |-> now + lease, confirmed |-> confirmed, token |-> drawn + 1]

\* The fields that may be granted by message when f does not want the lock.
Candidates(f) == {g \in line \ {f} : lapses[g[1]] = 0 \/ Mistake = "toAndFro"}

Publish(f, tok) ==
  sub' = [sub EXCEPT ![f[1]] = Append(@, [kind |-> "granted", n |-> f[2], sent |-> 0, token |-> tok])]

Grant(f) == Write(f, GrantOf(f[1]), FALSE) /\ Publish(f, drawn + 1)

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
\* What processes and connections do

\* Time goes on. A record whose lease ends disappears.
Tick ==
  /\ now' = now + 1
  /\ IF rec.field # None /\ rec.end = now'
     THEN /\ rec' = Free
          /\ lapses' = IF rec.confirmed THEN lapses ELSE [lapses EXCEPT ![rec.field[1]] = @ + 1]
     ELSE UNCHANGED <<rec, lapses>>
  /\ UNCHANGED <<line, drawn, process, network>>

\* What was sent at the given time ran before any grant that the process reads from now on.
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

\* A holder confirms or renews.
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
  /\ lapses' = [lapses EXCEPT ![p] = 0]
  /\ \/ rec.field # Field(p) /\ UNCHANGED <<rec, drawn, sub>>
     \/ rec.field = Field(p) /\ \E g \in Candidates(Field(p)) : Grant(g)
     \/ rec.field = Field(p) /\ Candidates(Field(p)) = {} /\ rec' = Free /\ UNCHANGED <<drawn, sub>>
  /\ answer' = IF Mistake = "lateAnswer" THEN answer ELSE [answer EXCEPT ![p] = None]
  /\ UNCHANGED <<now, n, proof, old>>

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

-----------------------------------------------------------------------------
Next ==
  \/ Tick
  \/ \E p \in Procs :
       \/ Lock(p) \/ Ask(p) \/ Confirm(p) \/ Unlock(p) \/ Ping(p)
       \/ ReadAnswer(p) \/ Read(p) \/ Reconnect(p)
       \/ PingRequests(p) \/ ReadAhead(p) \/ ReadOld(p)
  \/ Republish

Spec == Init /\ [][Next]_vars

S1 == \A p, q \in Procs : Believes(p) /\ Believes(q) => p = q
S2 == \A p \in Procs : Believes(p) => rec.field = Field(p)
S6 == \A p \in Procs : Believes(p) => token[p] = drawn
ToAndFro == \A p \in Procs : lapses[p] <= 1
Once == [][((rec.confirmed \/ (rec.field # None /\ rec.field[1] \in Short)) /\ rec'.token = rec.token)
           => rec'.end = rec.end]_vars

ReachMessage == \A p \in Procs : ~(Believes(p) /\ ~rec.confirmed)

-----------------------------------------------------------------------------
Bounds ==
  /\ \A p \in Procs : Len(sub[p]) <= 2
  /\ Cardinality({p \in Procs : answer[p] # None}) <= 1

Age(t, most) == IF t > now - most THEN now - t ELSE most
Left(t)      == IF t > now THEN t - now ELSE 0

ViewOf(p, m) ==
  CASE phase[p] # "wait" \/ (m.kind = "granted" /\ m.n # n[p]) -> <<>>
    [] m.kind = "pong" -> <<Age(Max(m.sent, proof[p]), P)>>
    [] OTHER -> <<"granted", m.token = drawn>>

View == <<
  rec.field, Left(rec.end), rec.confirmed, line, lapses, n, phase,
  [p \in Procs |-> <<
     IF phase[p] = "wait" THEN Age(proof[p], P) ELSE 0,
     IF Believes(p) THEN <<trust[p] - now, token[p] = drawn>> ELSE <<>>,
     IF answer[p] = None THEN None
     ELSE LET left == Left(answer[p].sent + answer[p].pttl) IN <<left, left > 0 /\ answer[p].token = drawn>>,
     [i \in DOMAIN sub[p] |-> ViewOf(p, sub[p][i])],
     [i \in DOMAIN old[p] |-> ViewOf(p, old[p][i])]>>]
  >>

Symmetry == Permutations(Procs \ (Proxied \cup Short))
=============================================================================
