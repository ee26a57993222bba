-------------------------------- MODULE Trace --------------------------------
(***************************************************************************
The scripts in internal/lua/ and the clients, as steps of Line.

TestTrace (tests/faults/trace_test.go) lets clients use plain locks under faults.  It writes
the module TraceData: for each lock what its scripts did, in the order in which
Redis ran them, and when a client believed that it held the lock.

Each event takes two steps.  Prepare sets the variables of the processes of
Line: which of them are subscribed, and which request runs.  Explain is the
step of Line for the event.  The record, the line, the answer and the messages
after it must be those of Redis, and the rules of Line must hold.  So the
specification cannot differ from the scripts.  A trace is accepted when all of
its events are explained; otherwise the first event without an explanation is
printed.

A request that ran after the end of its field was under way when the field
ended.  So these requests are under way all the time, and Line keeps their
tombstones.

Left out: Java, forced releases, deleted records, and waiters that may not
subscribe.  A client whose subscription the server does not know is subscribed
to the channel of Java, and is left the lock once in a hand-off window.

What replaying showed:
  - A request that does not join is granted the lock only when it is its turn.
 ***************************************************************************)
EXTENDS Line, TraceData

VARIABLES trace, \* the number of the trace
          i,     \* the number of the event
          ready  \* the event has been prepared

E      == Traces[trace].events[i]
Last   == Len(Traces[trace].events)
F      == IF E.k = "believe" THEN <<E.p, record[2]>> ELSE E.f \* the field of the event
Begins == E.k \in {"ask", "believe"}
Late   == {[f |-> f, push |-> FALSE, old |-> TRUE] : f \in Traces[trace].late}

Prepare ==
  /\ ~ready /\ i <= Last /\ ready' = TRUE /\ UNCHANGED <<trace, i>>
  /\ sub' = [p \in Procs |-> E.k \in {"ask", "end"} /\ p \in E.h]
  /\ st' = [p \in Procs |-> IF st[p] = "holds" THEN "holds" ELSE IF Begins /\ p = F[1] THEN "waits" ELSE "idle"]
  /\ n' = [p \in Procs |-> IF st[p] # "holds" /\ Begins /\ p = F[1] THEN F[2] ELSE n[p]]
  /\ asks' = Late /\ ends' = {} /\ answers' = {}
  /\ msgs' = IF E.k = "believe" THEN {<<F, "grant">>} ELSE {}
  /\ UNCHANGED <<record, line, brief, over, conf, calm, listens, counts>>

Told == {<<m[1][1], m[2]>> : m \in msgs'}

Asked ==
  /\ RunAsk([f |-> E.f, push |-> E.delivery = "push", old |-> FALSE], E.delivery = "barge")
  /\ IF E.f \in over THEN E.a = "busy"
     ELSE answers' = IF E.a = "yours" \/ Waits(E.f) THEN {[f |-> E.f, kind |-> E.a, old |-> FALSE]} ELSE {}
  /\ Told = E.m

Ended ==
  /\ \/ RunEnd([f |-> E.f, re |-> 0], FALSE)
     \/ E.all /\ RunEnd([f |-> E.f, re |-> 0], TRUE)
  /\ E.a = IF record = E.f THEN "done" ELSE "gone"
  /\ Told = E.m

Explain ==
  /\ ready /\ ready' = FALSE /\ i' = i + 1 /\ UNCHANGED trace
  /\ CASE E.k = "ask"   -> Asked
       [] E.k = "end"   -> Ended
       [] E.k = "expire" -> Expire
       [] E.k = "believe" -> Receive(<<F, "grant">>) /\ st'[E.p] = "holds" \* by the message, or by an answer
       [] E.k = "doubt" -> Unlock(E.p)
       [] OTHER         -> FALSE \* a script that may not change the state of Line
  /\ E.k \notin {"believe", "doubt"} => record' = E.r /\ line' = E.l
  /\ OneHolder' /\ Backed' /\ InOrder' /\ Heard'

Stop(verdict) == PrintT(verdict) /\ i' = Last + 2 /\ ready' = FALSE /\ UNCHANGED <<trace, vars>>
Accept == i = Last + 1 /\ Stop(<<"accepted", trace>>)
Reject == ready /\ ~ENABLED Explain
          /\ Stop(<<"rejected", trace, i, [record |-> record, line |-> line, over |-> over, st |-> st]>>)

TraceInit == Init /\ trace \in 1..Len(Traces) /\ i = 1 /\ ready = FALSE
TraceNext == Prepare \/ Explain \/ Accept \/ Reject
TraceSpec == TraceInit /\ [][TraceNext]_<<vars, trace, i, ready>>
=============================================================================
