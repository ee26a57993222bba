------------------------------ MODULE Semaphore ------------------------------
(***************************************************************************
The semaphore: a script that makes permits available grants them to the places
in the line, which is the wait queue in Redis.

The record has a counter of the available permits and the set of the taken
ones.  Java shares it, and does not know the line.  Every script is one step.
Requests and answers run late and in any order, and a request whose answer is
lost runs again.  A process has one waiter at a time.  It may hold a permit
while it waits for another.  The processes in Wide want two permits at once.

Left out: time, so a lease may expire whenever its process does not believe
that it holds the permit (Validity.tla shows that it stops in time).  Also left
out, because Line.tla has them: how a process subscribes, the short lease of a
grant, tombstones that expire.  Also left out: waiters of Java, and forced
releases.

Simplified: the permits of one hold expire together, and Java returns all of
them.

Faults are counted, at most MaxFaults: a request that runs twice, a lost
answer, a cut connection, a process that learns of its grant too late, a
process that crashes.

Bounds, and the number of distinct states:
  Semaphore         2 permits, 3 processes, a wait each, one fault   12,793
  Semaphore-again   1 permit, 2 processes, 3 waits, no faults         8,202
  Semaphore-java    2 permits, 2 processes and Java, one crash        5,515
  Semaphore-set     3 processes; 2 permits become 1 or 3              6,118
  Semaphore-try     1 permit, 2 processes, some waits are a TryLock
                    that does not wait, a request that runs twice     1,249
  Semaphore-wide    2 permits, 3 processes, one wide, one fault      103,540
  Semaphore-widetry 2 permits, 3 processes, two of them wide, some
                    waits are a TryLock that does not wait        12,583
  Semaphore-wideset 3 processes, one of them wide; 2 permits become
                    1, and 2 again                                   30,961
mistakes/Semaphore-NAME.cfg omits the precaution NAME (search for it below) and
breaks one of the rules at the end:
  Agree      notIdempotent  a repeated request takes a second permit
             releaseTwice   a repeated release releases a second one
             expireTwice    a release returns a permit that was already
                            returned when its lease expired
  Limit      handsOn        a release grants its permit, whatever the counter
             partly         a place that wants two permits is granted them when
                            one is available
  Backed     believeLate    validity counts from the answer
  NoOrphan   noTombstone    a request that runs after its rollback takes a
                            permit
             forgetSoon     an answer removes the tombstone although another
                            request may still run
             rollBackLost   a TryLock that was told "busy" rolls nothing back
  NoSleep    silentRelease  a release grants no permit and tells no process
             oneGrant       a script grants one permit of several
             setOnly        SetPermits grants nothing
             newsLost       the end of a wait that was told grants nothing
             noPoll         a waiter does not poll
             blocks         a place that wants more permits than there are by now
                            stops those behind it
  InOrder    barge          a newcomer takes a permit before the line
             skips          a place that wants more permits than are available is
                            passed over
             tryAhead       a TryLock takes a permit that is kept for such a place

What the model showed:
  - "A release grants what it frees" is wrong for several permits.  Leases
    expire together, and SetPermits adds some: then one script must grant
    several.  After SetPermits has taken some away, a release must grant none.
    So a script grants while the counter is above 0 and a place is reachable.
  - Of the processes that are told that a permit is available, one may have got
    a permit by an answer that was under way, and does not ask any more.  This
    cannot happen with a lock, because no process gets it meanwhile.  So an
    announcement of Java that only some processes receive wakes none of the
    others in this case, and the poller of a waiter finds the permit.
  - A TryLock that was sent twice may be told "busy" by one run and take a
    permit with the other.  So "busy" ends it only if no run is unknown.
 ***************************************************************************)
EXTENDS Integers, Sequences, FiniteSets, TLC

CONSTANTS Procs,      \* processes of relock
          Permits,    \* the number of permits at the beginning
          Sets,       \* the numbers that SetPermits may set
          MaxSets,    \* calls of SetPermits
          MaxWaits,   \* waits of one process
          MaxTotal,   \* waits of all processes
          Tries,      \* whether a wait may be a TryLock that does not wait
          MaxFaults,
          Faults,     \* the kinds of faults: "again", "lost", "cut", "late", "die"
          MaxJava,    \* permits that Java takes
          Wide,       \* the processes that want two permits at once
          Mistake     \* the precaution that is omitted, or "none"

VARIABLES
  \* Redis
  free,      \* the counter
  taken,     \* ids of the permits that are taken: fields of relock, and ids of Java
  expired,   \* those of them whose lease has expired
  line,      \* the fields of the places, first come first
  over,      \* fields with a tombstone
  \* the processes
  n,         \* n[p]: number of the last wait of p; its field is <<p, n[p]>>
  st,        \* st[f]: "none", "waits", "tries", "holds", "over", "dead"
  calm,      \* calm[p]: p has been told that it is enqueued, and sleeps
  disconnected, \* processes whose subscription Redis has lost
  \* the network
  asks, ends, answers, msgs,
  \* what is counted
  permits,   \* the number that was set last
  sets, javas, faults,
  silent,    \* permits became available, and no process was told
  before,    \* before[p]: the fields that were enqueued when the wait of p began, and still are
  overtaken  \* a permit went to a wait although one of these could have been granted it

redis   == <<free, taken, expired, line, over>>
procs   == <<n, st, calm, disconnected>>
network == <<asks, ends, answers, msgs>>
counts  == <<permits, sets, javas, faults, silent, before, overtaken>>
vars    == <<redis, procs, network, counts>>

Field(p) == <<p, n[p]>>
Allow    == Procs \X (0..MaxWaits)
Waits(f) == f \in Allow /\ st[f] \in {"waits", "tries"}
Holds(f) == f \in Allow /\ st[f] = "holds"
OfJava   == {f \in taken : f \notin Allow}
Min(S)   == CHOOSE x \in S : \A y \in S : x <= y

Size(f) == IF f[1] \in Wide THEN 2 ELSE 1 \* how many permits f wants
RECURSIVE Weight(_)
Weight(S) == IF S = {} THEN 0 ELSE LET f == CHOOSE x \in S : TRUE IN Size(f) + Weight(S \ {f})

Fields(l)     == {l[i] : i \in 1..Len(l)}
Without(l, f) == SelectSeq(l, LAMBDA x : x # f)
Reachable(f)  == f[1] \notin disconnected
\* The places that can be granted what they want, of a semaphore with this number of permits.
Ready(l, total) == {f \in Fields(l) : Reachable(f) /\ Size(f) <= total}

\* A place joins at the end, or takes that of an older wait of its process.
Join(l, f) ==
  LET own == {i \in 1..Len(l) : l[i][1] = f[1]} IN
  IF own = {} THEN Append(l, f)
  ELSE IF l[Min(own)][2] > f[2] THEN l ELSE [l EXCEPT ![Min(own)] = f]

\* A script works on s: the record, the line, and the messages that it sends.
Now == [free |-> free, taken |-> taken, expired |-> expired, line |-> line, msgs |-> {}]

\* A request and SetPermits first return the permits whose lease has expired.
Settled == [Now EXCEPT !.free = @ + Weight(expired), !.taken = @ \ expired, !.expired = {}]

Total(s) == s.free + Weight(s.taken)

\* Whether the next place wants more permits than are available: then nobody may take them.
Short(s) ==
  LET can == {i \in 1..Len(s.line) : s.line[i] \in Ready(s.line, Total(s))}
  IN can # {} /\ Size(s.line[Min(can)]) > s.free

\* Available permits go to the first places. A place that wants more than there are at all is passed over. asker is the field that joins in the same script, or None: it needs no
\* message.
None == <<"none", 0>>
RECURSIVE Pass(_, _)
Pass(s, asker) ==
  LET l   == SelectSeq(s.line, LAMBDA x : x = asker \/ Reachable(x))
      can == {i \in 1..Len(l) : /\ Size(l[i]) <= Total(s) \/ Mistake = "blocks"
                                /\ Mistake = "skips" => Size(l[i]) <= s.free}
  IN IF s.free <= 0 \/ Len(s.line) = 0 THEN s
     ELSE IF can = {} \/ (Size(l[Min(can)]) > s.free /\ Mistake # "partly") THEN [s EXCEPT !.line = l]
     ELSE LET f == l[Min(can)]
              to == [s EXCEPT !.free = @ - Size(f), !.taken = @ \cup {f}, !.line = Without(l, f),
                              !.msgs = IF f = asker THEN @ ELSE @ \cup {<<f, "grant">>}]
          IN IF Mistake = "oneGrant" THEN to ELSE Pass(to, asker)

\* Permits stay available, for Java. The first place is told.
Open(s) ==
  LET l == SelectSeq(s.line, Reachable)
  IN [s EXCEPT !.line = l, !.msgs = IF l = <<>> THEN {} ELSE {<<l[1], "free">>}]

\* The changes that the script has made to s are written.
Write(s) ==
  LET new   == {f \in (s.taken \ s.expired) \ (taken \ expired) : f[1] \in Procs /\ f = Field(f[1]) /\ Waits(f)}
      ready == Ready(s.line, Total(s))
      old   == {i \in 1..Len(line) : line[i] \in ready}
      \* A TryLock goes before all places, unless the next one is wide.
      passes(f) == IF st[f] = "waits" THEN ready
                   ELSE {line[i] : i \in {j \in old : line[j][1] \in Wide /\ \A k \in 1..Len(line) :
                           line[k] \in Ready(line, Total(s)) => j <= k}}
  IN
  /\ free' = s.free /\ taken' = s.taken /\ expired' = s.expired /\ line' = s.line /\ msgs' = msgs \cup s.msgs
  /\ silent' = (s.expired # {})
  /\ overtaken' = (overtaken \/ \E f \in new : before[f[1]] \cap passes(f) # {})
  /\ before' = [p \in Procs |-> before[p] \cap ready]

Fault(kind) == kind \in Faults /\ faults < MaxFaults /\ faults' = faults + 1

-----------------------------------------------------------------------------
Init ==
  /\ free = Permits /\ permits = Permits /\ taken = {} /\ expired = {} /\ line = <<>> /\ over = {}
  /\ n = [p \in Procs |-> 0] /\ st = [f \in Allow |-> "none"] /\ calm = [p \in Procs |-> FALSE] /\ disconnected = {}
  /\ asks = {} /\ ends = {} /\ answers = {} /\ msgs = {}
  /\ sets = 0 /\ javas = 0 /\ faults = 0 /\ silent = FALSE /\ before = [p \in Procs |-> {}] /\ overtaken = FALSE

\* ---- Processes ----

RECURSIVE Sum(_)
Sum(S) == IF S = {} THEN 0 ELSE LET p == CHOOSE x \in S : TRUE IN n[p] + Sum(S \ {p})

Asking(f) == asks \cup {[f |-> f, try |-> st[f] = "tries"]}

\* A goroutine of p wants a permit. Another one may hold a permit already.
Begin(p, try) ==
  LET f == <<p, n[p] + 1>> IN
  /\ n[p] < MaxWaits /\ Sum(Procs) < MaxTotal /\ ~Waits(Field(p)) /\ p \notin disconnected /\ (try => Tries)
  /\ n' = [n EXCEPT ![p] = @ + 1] /\ st' = [st EXCEPT ![f] = IF try THEN "tries" ELSE "waits"]
  /\ calm' = [calm EXCEPT ![p] = FALSE] /\ asks' = asks \cup {[f |-> f, try |-> try]}
  \* A wait that takes the place of an older one may come before these.
  /\ before' = [before EXCEPT ![p] = IF \E x \in Fields(line) : x[1] = p THEN {}
                                           ELSE Ready(line, free + Weight(taken))]
  /\ UNCHANGED <<redis, disconnected, ends, answers, msgs, permits, sets, javas, faults, silent, overtaken>>

\* The wait or the hold of f ends, and everything that it has in Redis is released.
Finish(f) == st' = [st EXCEPT ![f] = "over"] /\ ends' = ends \cup {f}

\* The waiter gives up, or the holder unlocks, or stops believing because it could not renew.
End(f) == (Waits(f) \/ Holds(f)) /\ Finish(f) /\ UNCHANGED <<redis, n, calm, disconnected, asks, answers, msgs, counts>>

\* p learns that f has a permit. Validity.tla has the time until which this is valid; here it is the end of the lease.
Yours(f) ==
  IF Waits(f) THEN
    IF (f \in taken \ expired) \/ Mistake = "believeLate"
    THEN st' = [st EXCEPT ![f] = "holds"] /\ UNCHANGED <<asks, ends, calm>>
    ELSE asks' = Asking(f) /\ calm' = [calm EXCEPT ![f[1]] = FALSE] /\ UNCHANGED <<st, ends>>
  ELSE UNCHANGED <<st, asks, ends, calm>> \* the end of f is on its way, and releases the permit

\* p reads an answer.
Answer(a) ==
  LET f == a.f IN
  /\ answers' = answers \ {a}
  /\ CASE a.kind = "yours" -> Yours(f)
       [] a.kind = "joined" /\ Waits(f) -> calm' = [calm EXCEPT ![f[1]] = TRUE] /\ UNCHANGED <<st, asks, ends>>
       [] a.kind = "busy" /\ st[f] = "tries" -> \* if it was sent twice, the other run is rolled back
            /\ st' = [st EXCEPT ![f] = "over"]
            /\ ends' = IF Mistake # "rollBackLost" /\ \E x \in asks \cup answers' : x.f = f THEN ends \cup {f} ELSE ends
            /\ UNCHANGED <<calm, asks>>
       [] a.kind = "invalid" /\ Waits(f) -> Finish(f) /\ UNCHANGED <<calm, asks>>
       [] OTHER -> UNCHANGED <<st, calm, asks, ends>>
  /\ UNCHANGED <<redis, n, disconnected, msgs, counts>>

\* An answer is lost. A process that still waits for it sends the request again.
LoseAnswer(a) ==
  /\ answers' = answers \ {a} /\ Fault("lost")
  /\ asks' = IF Waits(a.f) THEN Asking(a.f) ELSE asks
  /\ UNCHANGED <<redis, procs, ends, msgs, permits, sets, javas, silent, before, overtaken>>

\* p reads a message.
Receive(m) ==
  LET f == m[1] IN
  /\ msgs' = msgs \ {m}
  /\ IF m[2] = "grant" THEN Yours(f)
     ELSE IF Waits(f) THEN asks' = Asking(f) /\ calm' = [calm EXCEPT ![f[1]] = FALSE] /\ UNCHANGED <<st, ends>>
     ELSE UNCHANGED <<st, calm, asks, ends>>
  /\ UNCHANGED <<redis, n, disconnected, answers, counts>>

\* The connection of p is cut, with what is on it. Later p has another one, and asks.
Cut(p) ==
  /\ p \notin disconnected /\ Waits(Field(p)) /\ Fault("cut")
  /\ disconnected' = disconnected \cup {p} /\ msgs' = {m \in msgs : m[1][1] # p}
  /\ UNCHANGED <<redis, n, st, calm, asks, ends, answers, permits, sets, javas, silent, before, overtaken>>
Notice(p) ==
  /\ p \in disconnected /\ st[Field(p)] # "dead"
  /\ disconnected' = disconnected \ {p} /\ calm' = [calm EXCEPT ![p] = FALSE]
  /\ asks' = IF Waits(Field(p)) THEN Asking(Field(p)) ELSE asks
  /\ UNCHANGED <<redis, n, st, ends, answers, msgs, counts>>

Die(p) ==
  /\ \E f \in Allow : f[1] = p /\ (Waits(f) \/ Holds(f))
  /\ Fault("die")
  /\ st' = [f \in Allow |-> IF f[1] = p THEN "dead" ELSE st[f]] /\ n' = [n EXCEPT ![p] = MaxWaits] /\ disconnected' = disconnected \cup {p}
  /\ answers' = {a \in answers : a.f[1] # p} /\ msgs' = {m \in msgs : m[1][1] # p}
  /\ silent' = TRUE \* p may have been told
  /\ UNCHANGED <<redis, calm, asks, ends, permits, sets, javas, before, overtaken>>

\* p polls, once in each poll interval and when a lease expires, and finds that a permit may be available: p asks.
Poll(p) ==
  /\ st[Field(p)] = "waits" /\ calm[p] /\ free + Weight(expired) > 0 /\ Mistake # "noPoll"
  /\ calm' = [calm EXCEPT ![p] = FALSE] /\ asks' = Asking(Field(p))
  /\ UNCHANGED <<redis, n, st, disconnected, ends, answers, msgs, counts>>

\* ---- Redis ----

\* A request for a permit. A TryLock takes an available permit before all places, unless the next one is wide, and has no
\* place.
RunAsk(a) ==
  LET f  == a.f
      s0 == Settled
      first == {i \in 1..Len(s0.line) : s0.line[i] \in Ready(s0.line, Total(s0))}
      kept  == a.try /\ Mistake # "tryAhead" /\ first # {} /\ s0.line[Min(first)][1] \in Wide
      sT == IF kept THEN Pass(s0, None) ELSE s0
      invalid == Size(f) > Total(s0) /\ f \notin Fields(s0.line) /\ f \notin s0.taken
      s1 == IF invalid THEN Pass(s0, None)
            ELSE IF a.try \/ Mistake = "barge"
            THEN IF sT.free >= Size(f) /\ ~(kept /\ Short(sT))
                 THEN Pass([sT EXCEPT !.free = @ - Size(f), !.taken = @ \cup {f}], None)
                 ELSE IF a.try THEN sT ELSE [sT EXCEPT !.line = Join(@, f)]
            ELSE Pass([s0 EXCEPT !.line = Join(@, f)], f)
      \* Redis has lost the subscription of the process, so its place does not stop those behind it.
      sL == Pass([s0 EXCEPT !.line = Without(@, f)], None)
      s2 == IF sL.free >= Size(f) /\ ~Short(sL) THEN Pass([sL EXCEPT !.free = @ - Size(f), !.taken = @ \cup {f}], None) ELSE sL
      s  == CASE f \notin s0.taken -> IF Reachable(f) \/ a.try THEN s1 ELSE s2
              [] Mistake = "notIdempotent" /\ s0.free > 0 -> [s0 EXCEPT !.free = @ - 1]
              [] OTHER -> Pass(s0, None)
      kind  == IF f \in s.taken THEN "yours" ELSE IF invalid THEN "invalid" ELSE IF f \in Fields(s.line) THEN "joined" ELSE "busy"
      late  == f \in over /\ Mistake # "noTombstone" \* the script changes nothing, and no process waits for the answer
      heard == IF late \/ st[f] = "dead" \/ (kind # "yours" /\ ~Waits(f)) THEN answers ELSE answers \cup {[f |-> f, kind |-> kind]}
  IN
  /\ answers' = heard
  /\ \/ asks' = asks \ {a} /\ UNCHANGED faults
     \/ asks' = asks /\ Fault("again") \* the answer is late, and the request has been sent twice
  /\ IF late THEN /\ over' = IF (\E x \in asks' : x.f = f) /\ Mistake # "forgetSoon" THEN over ELSE over \ {f}
                  /\ UNCHANGED <<free, taken, expired, line, msgs, silent, before, overtaken>>
     ELSE Write(s) /\ UNCHANGED over
  /\ UNCHANGED <<procs, ends, permits, sets, javas>>

\* A release, or the rollback of a wait: f never takes a permit again. open: Java may wait, so the permit stays available
\* for a moment.
RunEnd(f, open) ==
  LET s0   == IF Mistake = "expireTwice" THEN Settled ELSE Now
      mine == f \in taken \/ Mistake = "releaseTwice"
      s1   == [s0 EXCEPT !.free = IF mine THEN @ + Size(f) ELSE @, !.taken = @ \ {f}, !.expired = @ \ {f}, !.line = Without(@, f)]
      on   == Pass([s1 EXCEPT !.free = Size(f)], None) \* the permits of f itself
      s    == CASE Mistake = "silentRelease" -> s1
                [] Mistake = "handsOn" /\ mine -> [on EXCEPT !.free = @ + s1.free - Size(f)]
                [] Mistake = "newsLost" /\ ~mine -> s1
                [] OTHER -> IF open THEN Open(s1) ELSE Pass(s1, None)
  IN
  /\ open => MaxJava > 0 /\ mine
  /\ \/ ends' = ends \ {f} /\ UNCHANGED faults
     \/ ends' = ends /\ Fault("again")
  /\ over' = {x \in over \cup {f} : \E a \in asks : a.f = x} \* only these still matter
  /\ Write(s)
  /\ UNCHANGED <<procs, asks, answers, permits, sets, javas>>

SetPermits(m) ==
  LET s == [Settled EXCEPT !.free = @ + m - permits] IN
  /\ m # permits /\ sets < MaxSets
  /\ permits' = m /\ sets' = sets + 1
  /\ Write(IF Mistake = "setOnly" THEN s ELSE Pass(s, None))
  /\ UNCHANGED <<over, procs, asks, ends, answers, javas, faults>>

\* The lease of a permit expires. No process is told. The permit stays taken until a script returns it.
EndLease(f) ==
  /\ f \in taken \ expired /\ ~Holds(f) /\ f[1] # "java without lease"
  /\ IF Waits(f) THEN Fault("late") ELSE UNCHANGED faults
  /\ expired' = expired \cup {f} /\ silent' = TRUE
  /\ UNCHANGED <<free, taken, line, over, procs, network, permits, sets, javas, before, overtaken>>

\* ---- Java ----

JavaTake(id) ==
  /\ free > 0 /\ javas < MaxJava
  /\ free' = free - 1 /\ taken' = taken \cup {<<id, javas>>} /\ javas' = javas + 1
  /\ UNCHANGED <<expired, line, over, procs, network, permits, sets, faults, silent, before, overtaken>>

\* Java returns a permit whose lease has expired.
JavaDrop(f) ==
  /\ MaxJava > 0 /\ f \in expired
  /\ free' = free + Size(f) /\ taken' = taken \ {f} /\ expired' = expired \ {f} /\ silent' = TRUE
  /\ UNCHANGED <<line, over, procs, network, permits, sets, javas, faults, before, overtaken>>

\* Java releases a permit, and announces that. All waiters are subscribed to its channel; or the message is lost.
JavaRelease(f) ==
  /\ f \in OfJava
  /\ free' = free + 1 /\ taken' = taken \ {f} /\ expired' = expired \ {f}
  /\ \/ msgs' = msgs \cup {<<Field(p), "free">> : p \in {q \in Procs \ disconnected : st[Field(q)] = "waits"}} /\ UNCHANGED silent
     \/ silent' = TRUE /\ UNCHANGED msgs
  /\ UNCHANGED <<line, over, procs, asks, ends, answers, permits, sets, javas, faults, before, overtaken>>

Next ==
  \/ \E p \in Procs : Begin(p, FALSE) \/ Begin(p, TRUE) \/ Cut(p) \/ Notice(p) \/ Die(p) \/ Poll(p)
  \/ \E f \in Allow : End(f)
  \/ \E a \in answers : Answer(a) \/ LoseAnswer(a)
  \/ \E a \in asks : RunAsk(a)
  \/ \E f \in ends : RunEnd(f, FALSE) \/ RunEnd(f, TRUE)
  \/ \E m \in msgs : Receive(m)
  \/ \E m \in Sets : SetPermits(m)
  \/ \E f \in taken : EndLease(f) \/ JavaDrop(f) \/ JavaRelease(f)
  \/ \E id \in {"java", "java without lease"} : JavaTake(id)

Spec == Init /\ [][Next]_vars
Symmetry == Permutations(Procs \ Wide) \cup Permutations(Wide)

\* Values that no step and no rule can use any more are left out.
View == <<redis, n, st, [p \in Procs |-> calm[p] /\ Waits(Field(p))], disconnected, network, permits, sets, javas, faults,
          silent /\ free + Weight(expired) > 0, [p \in Procs |-> IF Waits(Field(p)) THEN before[p] ELSE {}], overtaken>>

\* ---- What must hold ----

\* Available and taken permits add up to the number of permits.
Agree == free + Weight(taken) = permits

\* A permit is taken only if fewer are taken than there are. If SetPermits takes some away, those in use stay in use.
Limit == [][taken' \subseteq taken \/ Weight(taken') <= permits']_vars

\* A process that believes that it holds a permit has it. With Agree and Limit: there are never more holders than permits.
Backed == \A f \in Allow : Holds(f) => f \in taken \ expired

\* A permit belongs to a wait or a hold that goes on, or its end is on the way; or its process is dead, and renews nothing.
NoOrphan == \A f \in taken \ expired : f \in Allow /\ st[f] # "dead" => Waits(f) \/ Holds(f) \/ f \in ends

\* No permit is lost for ever: when no process needs one, all come back except those of Java, at the latest when the
\* leases of crashed processes expire.
AllComeBack ==
  network = <<{}, {}, {}, {}>> /\ (\A f \in Allow : ~Waits(f) /\ ~Holds(f))
  => free + Weight(OfJava \cup expired \cup {f \in taken : f \in Allow /\ st[f] = "dead"}) = permits

\* Whether some permits should be taken: they are enough for the first place that is not passed over for ever.
Enough ==
  LET now == free + Weight(expired)
      can == {i \in 1..Len(line) : Reachable(line[i]) /\ Size(line[i]) <= free + Weight(taken)}
  IN now > 0 /\ (can # {} => Size(line[Min(can)]) <= now)

\* No waiter sleeps while enough permits are available, except for permits that no process was told of, which its poller
\* finds.
NoSleep ==
  network = <<{}, {}, {}, {}>> /\ Enough
  /\ (\A p \in Procs : Waits(Field(p)) => calm[p] /\ p \notin disconnected)
  => \A p \in Procs : Waits(Field(p)) /\ Size(Field(p)) <= free + Weight(expired) => silent /\ Mistake # "noPoll"

\* No wait is served before one that was enqueued when it began.
InOrder == ~overtaken
=============================================================================
