------------------------------ MODULE LineTrace ------------------------------
(***************************************************************************
Traces of a storm, as steps of Line.  TraceData, which TestTrace of trace_test.go
writes, has what the scripts of lua/ did to each lock, and when a client
believed that it held it.

Every event takes two steps.  Prepare has what Redis cannot know of itself:
who listens, and which request runs.  Explain is the step of Line that runs
then, and the state after it must be the one that Redis had.  A trace is
accepted when all of its events have been explained.  An event that no step
explains is printed, and so is the end of each trace.

A field that is over never asks with effect, so every request that ran after
the end of its field is under way from the beginning.
 ***************************************************************************)
EXTENDS Line, TraceData

VARIABLES trace, \* the number of the trace
          i,     \* the number of the event
          ready  \* it has been prepared

E      == Traces[trace].events[i]
Last   == Len(Traces[trace].events)
F      == IF E.k = "trust" THEN <<E.p, record[2]>> ELSE E.f \* the field of the event
Begins == E.k \in {"ask", "trust"}
Late   == {[f |-> f, lis |-> FALSE, old |-> TRUE] : f \in Traces[trace].late}

Prepare ==
  /\ ~ready /\ i <= Last /\ ready' = TRUE /\ UNCHANGED <<trace, i>>
  /\ sub' = [p \in Procs |-> E.k \in {"ask", "end"} /\ p \in E.h]
  /\ st' = [p \in Procs |-> IF st[p] = "holds" THEN "holds" ELSE IF Begins /\ p = F[1] THEN "waits" ELSE "idle"]
  /\ n' = [p \in Procs |-> IF st[p] # "holds" /\ Begins /\ p = F[1] THEN F[2] ELSE n[p]]
  /\ asks' = Late /\ ends' = {} /\ answers' = {}
  /\ msgs' = IF E.k = "trust" THEN {<<F, "grant">>} ELSE {}
  /\ UNCHANGED <<record, line, granted, brief, over, conf, calm, hears, counts>>

Told == {<<m[1][1], m[2]>> : m \in msgs'}

Asked ==
  LET a == [f |-> E.f, lis |-> E.ear = "hears", old |-> FALSE] IN
  /\ RunAsk(a, E.ear = "pass")
  /\ IF E.f \in over THEN E.a = "busy"
     ELSE answers' = IF E.a = "yours" \/ Waits(E.f) THEN {[f |-> E.f, kind |-> E.a, old |-> FALSE]} ELSE {}
  /\ Told = E.m

Ended ==
  /\ RunEnd([f |-> E.f, re |-> 0], FALSE)
  /\ E.a = IF record = E.f THEN "done" ELSE "gone"
  /\ Told = E.m

Explain ==
  /\ ready /\ ready' = FALSE /\ i' = i + 1 /\ UNCHANGED trace
  /\ CASE E.k = "ask"   -> Asked
       [] E.k = "end"   -> Ended
       [] E.k = "lapse" -> Lapse
       [] E.k = "trust" -> Receive(<<F, "grant">>) /\ st'[E.p] = "holds"
       [] E.k = "doubt" -> Unlock(E.p)
       [] OTHER         -> FALSE
  /\ E.k \notin {"trust", "doubt"} => record' = E.r /\ line' = E.l /\ granted' = E.g
  /\ OneHolder' /\ Backed' /\ InOrder' /\ Heard'

Stop(what) == PrintT(what) /\ i' = Last + 2 /\ ready' = FALSE /\ UNCHANGED <<trace, vars>>
Accept == i = Last + 1 /\ Stop(<<"accepted", trace>>)
Reject == ready /\ ~ENABLED Explain /\ Stop(<<"rejected", trace, i, [record |-> record, line |-> line, granted |-> granted, over |-> over, st |-> st]>>)

TraceInit == Init /\ trace \in 1..Len(Traces) /\ i = 1 /\ ready = FALSE
TraceNext == Prepare \/ Explain \/ Accept \/ Reject
TraceSpec == TraceInit /\ [][TraceNext]_<<vars, trace, i, ready>>
=============================================================================
