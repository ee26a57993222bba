-------------------------------- MODULE Line --------------------------------
(***************************************************************************
The line: the wait queue of a lock in Redis.  The process that releases the
lock grants it to the next process in the line.

The module has the record of one lock, its line of places, and the processes
that wait.  Every script is one step of Redis.  Requests and answers may take
any time, so they run late and in any order.  A request without an answer is
sent again, and so is one that has run while its answer was lost.

Left out: time.  A lease may expire whenever its process does not believe that
it holds the lock.  Validity.tla shows that a process stops believing before
its lease expires.  Also left out: the goroutines of a process that wait behind
one another (its place stays while one of them waits), fencing tokens
(Validity.tla), readers that are granted the lock together, a lock of another
type with the same name (it acts as Java does), FairLock, and forced releases.  Requests that take a free lock before all places (barges,
RunAsk) occur in Trace.tla only, which replays what the scripts did in a storm.

Faults are counted, at most MaxFaults: a request that runs twice, a lost
request or answer, a cut connection, a process that loses its hold, a process
that crashes, a tombstone that expires too early.

Bounds, and the number of distinct states:
  Line              3 processes, a wait each, no faults           43,785
  Line-connections  3 processes, a wait each, one fault: a cut
                    connection or a crash                       209,262
  Line-faults       2 processes, a wait each, one fault            8,881
  Line-again        2 processes, 3 waits, 2 of one process        59,076
  Line-java         2 processes and Java, a wait each, one fault 292,264
A third process adds something if a grant reaches no subscriber: Line and
Line-connections.  Two faults can leave a record to a wait that has ended,
until its lease expires: a tombstone expires too early, and the answer is lost
as well.  mistakes/Line-NAME.cfg omits the precaution NAME (search for it
below).

What the model showed:
  - A release for Java leaves the lock free and tells the first place.  If
    this wait ends just then, its end must grant the next place.  The same
    holds for a wait that is not in the line yet and has heard Java's release.
    So every release and give-up that finds no record grants the next place.
  - A process whose grant has expired asks because of the message of the grant,
    however late that comes, and joins again at the end.  But if its request
    was sent twice, an old answer "joined" may come after that.  Then only the
    poller finds that it has no place (lapsed).
  - A tombstone makes late requests harmless only while it lasts.  Afterwards
    a late request may join or take the lock.  Its process releases what it is
    told of; anything else expires with a short lease.
  - A tombstone may be removed when every request of its field has been
    answered.  One answer is not enough, because the request may have been
    sent twice (forgetSoon).
  - A grant for a wait that goes on is not released if it comes too late to be
    valid: the process asks, which confirms the grant or waits on.
 ***************************************************************************)
EXTENDS Naturals, Sequences, FiniteSets, TLC

CONSTANTS Procs,      \* processes of relock
          MaxWaits,   \* waits of one process
          MaxTotal,   \* waits of all processes
          MaxFaults,
          Faults,     \* the kinds of faults: "again", "lost", "cut", "lose", "die", "forget"
          MaxJava,    \* holds of Java
          Mistake     \* the precaution that is omitted, or "none"

VARIABLES
  \* Redis
  record,     \* the field that the record has; None, or Java
  line,       \* the fields of the places, first come first
  brief,      \* the record was granted by message for a short lease, and its process has not confirmed it yet
  over,       \* fields with a tombstone
  sub,        \* sub[p]: Redis has the subscription of p
  \* the processes
  st,         \* st[p]: "idle", "waits", "holds", or "dead" after a crash
  n,          \* n[p]: number of the wait of p; its field is <<p, n[p]>>
  conf,       \* conf[p]: p knows that its subscription is confirmed
  calm,       \* calm[p]: p has been told that it is enqueued, and sleeps
  listens,    \* listens[p]: p is subscribed to the channel of Redisson, too
  \* the network
  asks, ends, answers, msgs,
  \* what is counted
  faults,
  javas,      \* holds of Java
  silent,     \* the lock became free, and no process was told
  lapsed,     \* fields whose grant has expired while they waited
  overtaken,  \* a newcomer took a lock that could have been granted to a place
  unheard,    \* a process without a subscription was granted the lock
  forgotten   \* a tombstone expired too early

redis   == <<record, line, brief, over, sub>>
procs   == <<st, n, conf, calm, listens>>
network == <<asks, ends, answers, msgs>>
counts  == <<faults, javas, silent, lapsed, overtaken, unheard, forgotten>>
vars    == <<redis, procs, network, counts>>

None == <<"none", 0>>
Java == <<"java", 0>>

Field(p) == <<p, n[p]>>
Goes(f)  == st[f[1]] \in {"waits", "holds"} /\ n[f[1]] = f[2] \* the wait or the hold of f goes on
Waits(f) == st[f[1]] = "waits" /\ n[f[1]] = f[2]
Holds(f) == st[f[1]] = "holds" /\ n[f[1]] = f[2]

Fields(l)   == {l[i] : i \in 1..Len(l)}
Without(l, f) == SelectSeq(l, LAMBDA x : x # f)
OfProc(l, p) == {i \in 1..Len(l) : l[i][1] = p}
Min(S)      == CHOOSE x \in S : \A y \in S : x <= y

\* A place joins at the end, or replaces the place of an older wait of its process.
Join(l, f) ==
  IF OfProc(l, f[1]) = {} THEN Append(l, f)
  ELSE LET i == Min(OfProc(l, f[1])) IN IF l[i][2] > f[2] THEN l ELSE [l EXCEPT ![i] = f]

Reachable(f) == sub[f[1]] \/ Mistake = "uncounted"

\* A lock that stays free, with the line l.
NoGrant(l, tell) ==
  [record |-> None, line |-> l, brief |-> FALSE, msgs |-> {<<x, "free">> : x \in tell}, f |-> None]

\* The grant of the next place of l. asker is the field that joins in the same script, or None: it needs no message.
Next1(l, asker) ==
  LET can == {i \in 1..Len(l) : l[i] = asker \/ Reachable(l[i])}
  IN IF can = {} THEN NoGrant(<<>>, {})
     ELSE LET i == Min(can) f == l[i] IN
       [record |-> f, line |-> SubSeq(l, i + 1, Len(l)), brief |-> f # asker, msgs |-> IF f = asker THEN {} ELSE {<<f, "grant">>}, f |-> f]

Fault(kind) == kind \in Faults /\ faults < MaxFaults /\ faults' = faults + 1
\* A message that was run or read leaves the network; or it stays, and is run again.
Took(set, m) == set' = set \ {m} /\ UNCHANGED faults
Again(set, m) == set' = set /\ Fault("again")

-----------------------------------------------------------------------------
Init ==
  /\ record = None /\ line = <<>> /\ brief = FALSE /\ over = {} /\ sub = [p \in Procs |-> FALSE]
  /\ st = [p \in Procs |-> "idle"] /\ n = [p \in Procs |-> 0] /\ conf = [p \in Procs |-> FALSE]
  /\ calm = [p \in Procs |-> FALSE] /\ listens = [p \in Procs |-> FALSE]
  /\ asks = {} /\ ends = {} /\ answers = {} /\ msgs = {}
  /\ faults = 0 /\ javas = 0 /\ silent = FALSE /\ lapsed = {} /\ overtaken = FALSE /\ unheard = FALSE /\ forgotten = FALSE

\* ---- Processes ----

Outstanding(p) ==
  \/ \E a \in asks : a.f = Field(p)
  \/ \E a \in answers : a.f = Field(p)
  \/ \E e \in ends : e.re # 0 /\ <<p, e.re>> = Field(p)

\* The set with one more request of the field f. It joins the line in the same script if the subscription is confirmed.
Asking(set, f, subscribed) == set \cup {[f |-> f, push |-> subscribed \/ Mistake = "joinUnsubscribed", old |-> FALSE]}

\* An event after which an older answer "joined" proves nothing: all messages of the field f that are under way are old.
Old(set, f) == {IF x.f = f THEN [x EXCEPT !.old = TRUE] ELSE x : x \in set}

\* A goroutine of p wants the lock, and p asks.
Begin(p) ==
  /\ st[p] = "idle" /\ n[p] < MaxWaits
  /\ st' = [st EXCEPT ![p] = "waits"] /\ n' = [n EXCEPT ![p] = @ + 1]
  /\ asks' = Asking(asks, <<p, n[p] + 1>>, conf[p])
  /\ calm' = [calm EXCEPT ![p] = FALSE] /\ listens' = [listens EXCEPT ![p] = FALSE]
  /\ UNCHANGED <<redis, conf, ends, answers, msgs, counts>>

\* The request of p, or its answer, was lost. p asks again.
Ask(p) ==
  /\ st[p] = "waits" /\ ~calm[p] /\ conf[p] /\ ~Outstanding(p)
  /\ asks' = Asking(asks, Field(p), TRUE)
  /\ UNCHANGED <<redis, procs, ends, answers, msgs, counts>>

\* Redis subscribes p; p learns of it, and asks.
Subscribe(p) ==
  /\ st[p] = "waits" /\ ~conf[p] /\ (Mistake = "joinUnsubscribed" => ~calm[p])
  /\ sub' = [sub EXCEPT ![p] = TRUE] /\ conf' = [conf EXCEPT ![p] = TRUE] /\ calm' = [calm EXCEPT ![p] = FALSE]
  /\ asks' = IF Outstanding(p) THEN IF Mistake = "staleBusy" THEN asks ELSE Old(asks, Field(p)) ELSE Asking(asks, Field(p), TRUE)
  /\ answers' = IF Mistake = "staleBusy" THEN answers ELSE Old(answers, Field(p))
  /\ UNCHANGED <<record, line, brief, over, st, n, listens, ends, msgs, counts>>

\* The subscription connection of p is cut, with what is on it; p notices later.
Cut(p) ==
  /\ sub[p] /\ st[p] # "dead" /\ Fault("cut")
  /\ sub' = [sub EXCEPT ![p] = FALSE] /\ msgs' = {m \in msgs : m[1][1] # p}
  /\ UNCHANGED <<record, line, brief, over, procs, asks, ends, answers, javas, silent, overtaken, unheard, forgotten, lapsed>>
Notice(p) ==
  /\ conf[p] /\ ~sub[p] /\ st[p] # "dead" /\ Mistake # "oldFlag"
  /\ conf' = [conf EXCEPT ![p] = Mistake = "sleepOn"]
  /\ sub' = [sub EXCEPT ![p] = Mistake = "sleepOn"] \* subscribed again, although messages may have been missed
  /\ calm' = [calm EXCEPT ![p] = IF Mistake = "sleepOn" THEN @ ELSE FALSE]
  /\ listens' = [listens EXCEPT ![p] = FALSE]
  /\ UNCHANGED <<record, line, brief, over, st, n, network, counts>>

\* p does not need its subscription any more.
Leave(p) ==
  /\ st[p] = "idle" /\ conf[p] /\ sub[p]
  /\ \A e \in ends : e.f[1] # p
  /\ sub' = [sub EXCEPT ![p] = FALSE] /\ conf' = [conf EXCEPT ![p] = Mistake = "oldFlag"] /\ msgs' = {m \in msgs : m[1][1] # p}
  /\ UNCHANGED <<record, line, brief, over, st, n, calm, listens, asks, ends, answers, counts>>

\* p reads an answer.
Answer(a) ==
  LET p == a.f[1] f == a.f
      rest == answers \ {a}
      again == IF conf[p] /\ (\A x \in asks \cup rest : x.f # f) THEN Asking(asks, f, TRUE) ELSE asks \* otherwise Subscribe asks
  IN
  /\ st[p] # "dead"
  /\ IF Waits(f) THEN
       CASE a.kind = "yours" /\ (record = f \/ Mistake = "believeLate") -> \* the grant is still valid: Validity.tla
              st' = [st EXCEPT ![p] = "holds"] /\ answers' = rest /\ UNCHANGED <<calm, listens, ends, asks>>
         [] (a.kind = "joined" \/ (a.kind = "java" /\ (listens[p] \/ Mistake = "javaUnheard"))) /\ ~a.old
            /\ (conf[p] \/ Mistake = "joinUnsubscribed") ->
              calm' = [calm EXCEPT ![p] = TRUE] /\ answers' = rest /\ UNCHANGED <<st, listens, ends, asks>>
         [] a.kind = "java" /\ ~listens[p] /\ conf[p] -> \* subscribes to the channel of Redisson, and asks again
              /\ listens' = [listens EXCEPT ![p] = TRUE] /\ answers' = Old(rest, f) /\ asks' = Asking(Old(asks, f), f, TRUE)
              /\ UNCHANGED <<st, calm, ends>>
         [] OTHER -> asks' = again /\ answers' = rest /\ UNCHANGED <<st, calm, listens, ends>>
     ELSE /\ ends' = IF a.kind = "yours" /\ ~Goes(f) /\ Mistake # "dropUnknown" THEN ends \cup {[f |-> f, re |-> 0]} ELSE ends
          /\ answers' = rest
          /\ UNCHANGED <<st, calm, listens, asks>>
  /\ UNCHANGED <<redis, n, conf, msgs, counts>>

\* p reads a message.
Receive(m) ==
  LET f == m[1] p == f[1] IN
  /\ st[p] # "dead" /\ msgs' = msgs \ {m}
  /\ IF Waits(f) THEN
       IF m[2] = "grant" /\ (record = f \/ Mistake = "believeLate") \* the grant is still valid: Validity.tla
       THEN /\ st' = [st EXCEPT ![p] = "holds"] /\ brief' = FALSE /\ UNCHANGED <<calm, ends, asks, answers>>
       ELSE /\ calm' = [calm EXCEPT ![p] = FALSE] \* asks, which confirms a grant
            /\ asks' = IF Outstanding(p) THEN Old(asks, f) ELSE Asking(asks, f, conf[p])
            /\ answers' = Old(answers, f)
            /\ UNCHANGED <<st, ends, brief>>
     ELSE /\ ends' = IF m[2] = "grant" /\ ~Goes(f) /\ Mistake # "dropUnknown" THEN ends \cup {[f |-> f, re |-> 0]} ELSE ends
          /\ UNCHANGED <<st, calm, brief, asks, answers>>
  /\ UNCHANGED <<record, line, over, sub, n, conf, listens, faults, javas, silent, overtaken, unheard, forgotten, lapsed>>

\* p unlocks. If goroutines of p wait and its hand-off window has ended, p joins the end of the line in the same request.
Unlock(p) ==
  /\ st[p] = "holds"
  /\ \/ /\ st' = [st EXCEPT ![p] = "idle"] /\ ends' = ends \cup {[f |-> Field(p), re |-> 0]}
        /\ UNCHANGED <<n, calm>>
     \/ /\ n[p] < MaxWaits /\ conf[p]
        /\ st' = [st EXCEPT ![p] = "waits"] /\ n' = [n EXCEPT ![p] = @ + 1]
        /\ ends' = ends \cup {[f |-> Field(p), re |-> n[p] + 1]}
        /\ calm' = [calm EXCEPT ![p] = FALSE]
  /\ UNCHANGED <<redis, conf, listens, asks, answers, msgs, counts>>

\* The last waiting goroutine of p gives up.
GiveUp(p) ==
  /\ st[p] = "waits"
  /\ st' = [st EXCEPT ![p] = "idle"]
  /\ ends' = ends \cup {[f |-> Field(p), re |-> 0]}
  /\ UNCHANGED <<redis, n, conf, calm, listens, asks, answers, msgs, counts>>

\* p is paused for longer than its lease, or cannot renew it, and stops believing that it holds the lock.
Lose(p) ==
  /\ st[p] = "holds" /\ Fault("lose")
  /\ st' = [st EXCEPT ![p] = "idle"] /\ ends' = ends \cup {[f |-> Field(p), re |-> 0]}
  /\ UNCHANGED <<redis, n, conf, calm, listens, asks, answers, msgs, javas, silent, overtaken, unheard, forgotten, lapsed>>

Die(p) ==
  /\ st[p] \in {"waits", "holds"} /\ Fault("die")
  /\ st' = [st EXCEPT ![p] = "dead"] /\ sub' = [sub EXCEPT ![p] = FALSE] /\ conf' = [conf EXCEPT ![p] = FALSE]
  /\ answers' = {a \in answers : a.f[1] # p} /\ msgs' = {m \in msgs : m[1][1] # p}
  /\ silent' = (silent \/ record = None) \* p may have been told
  /\ UNCHANGED <<record, line, brief, over, n, calm, listens, asks, ends, javas, overtaken, unheard, forgotten, lapsed>>

\* The poller, which checks many names in one request, finds the lock free, or no place of p: p asks.
MayPoll(p) == Mistake # "noPoll" /\ (Mistake = "headPolls" => line # <<>> /\ line[1][1] = p)
Poll(p) ==
  /\ st[p] = "waits" /\ calm[p] /\ (record = None \/ Field(p) \notin Fields(line)) /\ MayPoll(p)
  /\ calm' = [calm EXCEPT ![p] = FALSE] /\ asks' = Asking(asks, Field(p), conf[p])
  /\ UNCHANGED <<redis, st, n, conf, listens, ends, answers, msgs, counts>>

\* ---- Redis ----

\* Whether a request may still run that has f take the lock or join. Its process knows this from the answers, and takes
\* the tombstone of f away as soon as none may.
MayRun(f, as, es) == (\E y \in as : y.f = f) \/ (\E z \in es : <<z.f[1], z.re>> = f)

\* A request for the lock. A field that has ended never takes the lock or joins the line.
\* barges: it takes a free lock before all others, and has no place: TryLock without a wait, and MultiLock.
RunAsk(a, barges) ==
  LET f == a.f
      joins == a.push /\ ~barges
      l == IF joins THEN Join(line, f) ELSE line
      to == IF barges THEN NoGrant(l, {}) ELSE Next1(l, IF joins THEN f ELSE None)
      in(q) == joins /\ f \in Fields(q)
      \* An answer without an effect on its process is left out.
      busy(kind) == answers' = IF st[f[1]] # "dead" /\ (kind = "yours" \/ Waits(f))
                               THEN answers \cup {[f |-> f, kind |-> kind, old |-> a.old]} ELSE answers
  IN
  /\ \/ Took(asks, a) \/ Again(asks, a)
  /\ IF f \in over /\ Mistake # "noTombstone" THEN
       /\ over' = IF MayRun(f, asks', ends) /\ Mistake # "forgetSoon" THEN over ELSE over \ {f}
       /\ UNCHANGED <<record, line, brief, sub, answers, msgs, silent, overtaken, unheard, forgotten>>
     ELSE IF record = f THEN \* it is yours: a confirmation
       /\ busy("yours") /\ brief' = FALSE
       /\ UNCHANGED <<record, line, over, sub, msgs, silent, overtaken, unheard, forgotten>>
     ELSE IF record # None THEN
       /\ line' = l
       /\ busy(IF record = Java THEN "java" ELSE IF in(l) THEN "joined" ELSE "busy")
       /\ UNCHANGED <<record, brief, over, sub, msgs, silent, overtaken, unheard, forgotten>>
     ELSE \* a free lock: the first takes it, or is granted it
       LET mine == (joins /\ to.f = f) \/ to.f = None \/ Mistake = "barge" IN
       /\ record' = IF mine THEN f ELSE to.record
       /\ line' = Without(to.line, IF mine THEN f ELSE None)
       /\ brief' = (~mine /\ to.brief)
       /\ msgs' = IF mine /\ to.f # None THEN msgs ELSE msgs \cup to.msgs
       /\ busy(IF mine THEN "yours" ELSE IF in(to.line) THEN "joined" ELSE "busy")
       /\ overtaken' = (overtaken \/ (mine /\ to.f \notin {f, None}))
       /\ unheard' = (unheard \/ (~mine /\ to.f # None /\ ~sub[to.f[1]]))
       /\ silent' = FALSE
       /\ UNCHANGED <<over, sub>>
  /\ lapsed' = lapsed \ Fields(line') \* who has a place again has no excuse
  /\ UNCHANGED <<procs, ends, javas, forgotten>>

\* A release, or a give-up: f leaves the line or releases the lock, and the next place is granted the lock.
\* free: Java may wait, so the lock becomes free for a moment, and the first place is told.
RunEnd(e, free) ==
  LET f == e.f
      mine == record = f \/ (Mistake = "releaseByProcess" /\ record[1] = f[1])
      \* A wait that ends may be the one that was told that the lock is free: its end tells the next.
      frees == mine \/ (record = None /\ Mistake # "newsLost")
      re   == <<f[1], e.re>>
      joins == e.re # 0 /\ ((mine /\ re \notin over) \/ Mistake = "rejoinAgain")
      l == IF joins THEN Join(Without(line, f), re) ELSE Without(line, f)
      heard == {i \in 1..Len(l) : sub[l[i][1]]}
      to == IF ~free THEN Next1(l, None)
            ELSE IF heard = {} THEN NoGrant(<<>>, {})
            ELSE NoGrant(SubSeq(l, Min(heard), Len(l)), {l[Min(heard)]})
  IN
  /\ free => MaxJava > 0 /\ mine
  /\ \/ Took(ends, e) \/ Again(ends, e)
  /\ over' = {x \in over \cup {f} : MayRun(x, asks, ends')}
  /\ IF frees THEN
       /\ record' = to.record /\ line' = to.line /\ brief' = to.brief /\ msgs' = msgs \cup to.msgs
       /\ unheard' = (unheard \/ (to.f # None /\ ~sub[to.f[1]]))
       /\ silent' = (silent /\ ~mine /\ to.f = None)
     ELSE line' = l /\ UNCHANGED <<record, brief, msgs, unheard, silent>>
  /\ answers' = IF e.re = 0 \/ ~Waits(re) THEN answers
                ELSE answers \cup {[f |-> re, kind |-> IF mine /\ re \in Fields(to.line) THEN "joined" ELSE "busy", old |-> FALSE]}
  /\ UNCHANGED <<sub, procs, asks, javas, overtaken, forgotten, lapsed>>

\* A request or an answer is lost. The request is sent again, so a release only takes longer.
LoseAsk(a) == asks' = asks \ {a} /\ Fault("lost")
  /\ UNCHANGED <<redis, procs, ends, answers, msgs, javas, silent, overtaken, unheard, forgotten, lapsed>>
LoseAnswer(a) == answers' = answers \ {a} /\ Fault("lost")
  /\ UNCHANGED <<redis, procs, asks, ends, msgs, javas, silent, overtaken, unheard, forgotten, lapsed>>

\* A tombstone expires before a request that is under way has run.
Forget(f) == over' = over \ {f} /\ forgotten' = TRUE /\ Fault("forget")
  /\ UNCHANGED <<record, line, brief, sub, procs, network, javas, silent, overtaken, unheard, lapsed>>

\* The lease of a record expires. No process is told.
Expire ==
  /\ record \notin {None, Java} /\ ~Holds(record)
  /\ IF Waits(record) /\ ~brief THEN Fault("lose") ELSE UNCHANGED faults
  /\ record' = None /\ silent' = TRUE /\ brief' = FALSE /\ lapsed' = IF Waits(record) THEN lapsed \cup {record} ELSE lapsed
  /\ UNCHANGED <<line, over, sub, procs, network, javas, overtaken, unheard, forgotten>>

\* Java takes a lock that is free, and does not know the line.
JavaTake ==
  /\ record = None /\ javas < MaxJava
  /\ record' = Java /\ javas' = javas + 1
  /\ UNCHANGED <<line, brief, over, sub, procs, network, faults, silent, overtaken, unheard, forgotten, lapsed>>
JavaRelease ==
  /\ record = Java
  /\ LET told == {p \in Procs : listens[p] /\ sub[p] /\ st[p] = "waits"} IN
     /\ record' = None /\ silent' = (told = {} /\ Mistake # "javaUnheard")
     /\ msgs' = msgs \cup {<<Field(p), "free">> : p \in told}
  /\ UNCHANGED <<line, brief, over, sub, procs, asks, ends, answers, faults, javas, overtaken, unheard, forgotten, lapsed>>

Next ==
  \/ \E p \in Procs : Begin(p) \/ Ask(p) \/ Subscribe(p) \/ Cut(p) \/ Notice(p) \/ Leave(p)
                      \/ Unlock(p) \/ GiveUp(p) \/ Lose(p) \/ Die(p) \/ Poll(p)
  \/ \E a \in answers : Answer(a) \/ LoseAnswer(a)
  \/ \E a \in asks : RunAsk(a, FALSE) \/ LoseAsk(a)
  \/ \E e \in ends : RunEnd(e, FALSE) \/ RunEnd(e, TRUE)
  \/ \E m \in msgs : Receive(m)
  \/ \E f \in over : Forget(f)
  \/ Expire \/ JavaTake \/ JavaRelease

Spec == Init /\ [][Next]_vars
RECURSIVE Sum(_)
Sum(S) == IF S = {} THEN 0 ELSE LET p == CHOOSE x \in S : TRUE IN n[p] + Sum(S \ {p})
Bound == Sum(Procs) <= MaxTotal
Symmetry == Permutations(Procs)

\* Values that no step and no rule can use any more are left out.
Now(set) == {IF Waits(x.f) THEN x ELSE [x EXCEPT !.old = FALSE] : x \in set}
View == <<record, line, brief, over, sub, st, n, conf, [p \in Procs |-> st[p] = "waits" /\ calm[p]],
          [p \in Procs |-> (st[p] = "waits" \/ (st[p] = "holds" /\ n[p] < MaxWaits)) /\ listens[p]], Now(asks), ends, Now(answers), msgs,
          faults, javas, silent /\ record = None, {f \in lapsed \ Fields(line) : Waits(f)}, overtaken, unheard, forgotten>>

\* ---- What must hold ----

\* S1: two processes never believe that they hold the lock.
OneHolder == \A p, q \in Procs : st[p] = "holds" /\ st[q] = "holds" => p = q

\* A process that believes that it holds the lock has the record.
Backed == \A p \in Procs : st[p] = "holds" => record = Field(p)

\* A record belongs to a wait or a hold that goes on, or its end is on the way. So no ended wait blocks the lock.
News(f) == \/ \E e \in ends : e.f = f
           \/ \E m \in msgs : m[1] = f
           \/ \E a \in answers : a.f = f
\* If a tombstone expired too early, a wait that has ended may be granted a short lease.
NoOrphan ==
  record \notin {None, Java} /\ st[record[1]] # "dead" => Goes(record) \/ News(record) \/ (forgotten /\ brief)

\* The same of a place.
NoDeadPlace == ~forgotten => \A i \in 1..Len(line) : st[line[i][1]] # "dead" => Goes(line[i]) \/ News(line[i])

\* No waiter sleeps while the lock is free and stays free, except after a lease has expired, or without a place because its
\* grant has, which its poller finds.
Quiet(p) == st[p] = "waits" /\ calm[p] /\ (conf[p] = sub[p] \/ Mistake = "oldFlag")
NoSleep ==
  record = None /\ asks = {} /\ ends = {} /\ answers = {} /\ msgs = {}
  /\ (\A p \in Procs : st[p] = "waits" => Quiet(p))
  => \A p \in Procs : st[p] = "waits" => (silent \/ Field(p) \in lapsed \ Fields(line)) /\ (\E q \in Procs : st[q] = "waits" /\ MayPoll(q))

\* A newcomer never overtakes a place that could have been granted the lock.
InOrder == ~overtaken

\* No process without a subscription is granted the lock.
Heard == ~unheard
=============================================================================
