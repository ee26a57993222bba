------------------------------- MODULE Tokens -------------------------------
(***************************************************************************
Fencing tokens in blocks: does a later holder always have a greater token?

A fenced lock that is handed off inside a process needs a token for each hold.
The first hold of a record draws one token in Redis.  The attempt that takes
the record over from it, inside the process, draws a block of up to B tokens
that end at the clock of Redis, but begins above the counter; the counter
becomes the end of the block.  Further holds take the next token of the block,
without a request, while the process has the record.

Modelled: one server with its clock, the token counter and the record;
attempts that take the record over and run once or twice, with answers that
are lost or come in any order; Java, which counts on from the counter; a clock
that is set back; a counter that is deleted or evicted while the record stays;
and a failover, which sets the counter back or loses the record as well.

Left out: leases and renewals (Validity.tla), the order of processes (Line.tla).
A process whose record was forced open or lost, and that has not noticed yet,
may go on: its holds are stale, and S6 asks only that later holds have greater
tokens.  A forced release between two tries of one attempt is left out, too:
the answer to the first one may come last.  A failover takes at least as long as a block has
tokens, and the clock of the new server is not behind.  A clock that is set
back and a lost counter together are more than tokens can stand, and so is
Java after a counter was lost: it counts from 1.

Tokens.cfg has two processes, and blocks of 3.

Each mistakes/Tokens-NAME.cfg seeds a mistake, which breaks S6:
  restKept       the rest of a block is used after the record was released
  otherAnswer    the rest of the block of another try is used
  ahead          a block lies above the counter, whatever the clock says
  belowCounter   a block lies below the clock, whatever the counter says
  fromMissing    a counter that is missing gives a block, too
  counterBehind  the counter becomes the first token of the block
One false rule shows that the model is not empty.  TLC must find that it is
violated: no block has more than one token (reach).
***************************************************************************)
EXTENDS Integers

CONSTANTS
  Procs,    \* the processes
  B,        \* the most tokens of a block
  End,      \* the last moment
  Mistake,  \* the seeded mistake, or "none"
  None      \* no process

VARIABLES
  clock,    \* of Redis
  counter,  \* 0: it is missing
  rec,      \* the process whose record is there, or None
  phase,    \* process -> "idle", "held", or "asks": it takes its record over
  rest,     \* process -> the tokens of its block that no hold has had
  tries,    \* process -> tries of the attempt that may still run
  answers,  \* process -> the answers under way to it: blocks
  greatest, \* the greatest token of a hold
  fell,     \* a hold had a token that was not greater than those before
  faults    \* what has happened: "back", "lost"

vars == <<clock, counter, rec, phase, rest, tries, answers, greatest, fell, faults>>

Max(a, b) == IF a > b THEN a ELSE b
Empty     == [first |-> 1, last |-> 0]

Init ==
  /\ clock = B /\ counter = 0 /\ rec = None
  /\ phase = [p \in Procs |-> "idle"]
  /\ rest = [p \in Procs |-> Empty]
  /\ tries = [p \in Procs |-> 0]
  /\ answers = [p \in Procs |-> {}]
  /\ greatest = 0 /\ fell = FALSE /\ faults = {}

\* A hold of p begins, with this token.
Give(p, token) ==
  /\ greatest' = Max(greatest, token)
  /\ fell' = (fell \/ (rec' = p /\ token <= greatest))

\* The script: one token, or a block.
One   == Max(counter + 1, clock)
Block ==
  LET last == CASE Mistake = "ahead" -> Max(counter + B, clock) [] OTHER -> One
      first == CASE Mistake = "ahead" -> Max(counter + 1, last - B + 1)
                 [] Mistake = "belowCounter" -> Max(1, last - B + 1)
                 [] counter = 0 /\ Mistake # "fromMissing" -> last
                 [] OTHER -> Max(counter + 1, last - B + 1)
  IN [first |-> first, last |-> last]

-----------------------------------------------------------------------------
\* The first hold of a record.
Acquire(p) ==
  /\ phase[p] = "idle" /\ rec = None
  /\ rec' = p /\ counter' = One
  /\ phase' = [phase EXCEPT ![p] = "held"]
  /\ Give(p, One)
  /\ UNCHANGED <<clock, rest, tries, answers, faults>>

\* A hold leaves the lock to the next one, which takes the next token of the block.
HandOff(p) ==
  /\ phase[p] = "held" /\ rest[p].first <= rest[p].last
  /\ rest' = [rest EXCEPT ![p].first = @ + 1]
  /\ rec' = rec
  /\ Give(p, rest[p].first)
  /\ UNCHANGED <<clock, counter, phase, tries, answers, faults>>

\* A hold leaves the record to the next one, which asks, once or twice.
TakeOver(p) ==
  /\ phase[p] = "held" /\ rest[p].first > rest[p].last
  /\ phase' = [phase EXCEPT ![p] = "asks"]
  /\ tries' = [tries EXCEPT ![p] = 2]
  /\ answers' = [answers EXCEPT ![p] = {}]
  /\ UNCHANGED <<clock, counter, rec, rest, greatest, fell, faults>>

\* A try runs, perhaps when another one was answered long ago. The record is there, or the lock is free.
Run(p) ==
  /\ tries[p] > 0 /\ (rec = p \/ (rec = None /\ phase[p] = "asks"))
  /\ tries' = [tries EXCEPT ![p] = @ - 1]
  /\ LET b == IF rec = p THEN Block ELSE [first |-> One, last |-> One]
     IN /\ counter' = IF Mistake = "counterBehind" THEN b.first ELSE b.last
        /\ answers' = [answers EXCEPT ![p] = @ \cup {b}]
  /\ rec' = p
  /\ UNCHANGED <<clock, phase, rest, greatest, fell, faults>>

\* An answer comes. What comes later is nobody's.
Read(p) ==
  /\ phase[p] = "asks"
  /\ \E b \in answers[p] :
     /\ rec' = rec
     /\ Give(p, b.first)
     /\ rest' = [rest EXCEPT ![p] = [b EXCEPT !.first = @ + 1]]
     /\ answers' = [answers EXCEPT ![p] = @ \ {b}]
  /\ phase' = [phase EXCEPT ![p] = "held"]
  /\ UNCHANGED <<clock, counter, tries, faults>>

\* "otherAnswer": what comes later is the next block.
ReadOther(p) ==
  /\ Mistake = "otherAnswer" /\ phase[p] = "held" /\ rest[p].first > rest[p].last
  /\ \E b \in answers[p] :
     /\ rest' = [rest EXCEPT ![p] = b]
     /\ answers' = [answers EXCEPT ![p] = @ \ {b}]
  /\ UNCHANGED <<clock, counter, rec, phase, tries, greatest, fell, faults>>

\* The record ends here: it is released, forced open, or the process has noticed that it was lost. A late try finds a tombstone.
Release(p) ==
  /\ phase[p] # "idle"
  /\ rec' = IF rec = p THEN None ELSE rec
  /\ phase' = [phase EXCEPT ![p] = "idle"]
  /\ tries' = [tries EXCEPT ![p] = 0]
  /\ answers' = [answers EXCEPT ![p] = {}]
  /\ rest' = IF Mistake = "restKept" THEN rest ELSE [rest EXCEPT ![p] = Empty]
  /\ UNCHANGED <<clock, counter, greatest, fell, faults>>

-----------------------------------------------------------------------------
\* Java takes the free lock and releases it. It needs longer than a moment of the clock.
Java ==
  /\ rec = None /\ counter < clock
  /\ counter >= greatest \* it was not lost since
  /\ counter' = counter + 1
  /\ greatest' = Max(greatest, counter + 1)
  /\ fell' = (fell \/ counter + 1 <= greatest)
  /\ UNCHANGED <<clock, rec, phase, rest, tries, answers, faults>>

Tick ==
  /\ clock < End /\ clock' = clock + 1
  /\ UNCHANGED <<counter, rec, phase, rest, tries, answers, greatest, fell, faults>>

\* The clock is set back.
SetBack ==
  /\ faults = {} /\ faults' = {"back"}
  /\ clock' \in 1..(clock - 1)
  /\ UNCHANGED <<counter, rec, phase, rest, tries, answers, greatest, fell>>

\* The counter is deleted, or evicted.
Delete ==
  /\ faults = {} /\ faults' = {"lost"}
  /\ counter <= clock \* requests take longer than a moment of the clock
  /\ counter' = 0
  /\ clock < End /\ clock' = clock + 1
  /\ UNCHANGED <<rec, phase, rest, tries, answers, greatest, fell>>

\* Another server goes on, with what it had of the counter, and with the record or without it.
Failover ==
  /\ faults = {} /\ faults' = {"lost"}
  /\ counter <= clock
  /\ counter' \in 0..counter
  /\ rec' \in {rec, None}
  /\ clock + B <= End /\ clock' = clock + B
  /\ tries' = [p \in Procs |-> 0]
  /\ UNCHANGED <<phase, rest, answers, greatest, fell>>

\* Another process forces the lock open, or an operator deletes the record.
Force ==
  /\ rec # None /\ rec' = None
  /\ phase[rec] = "held"
  /\ UNCHANGED <<clock, counter, phase, rest, tries, answers, greatest, fell, faults>>

Next ==
  \/ \E p \in Procs : Acquire(p) \/ HandOff(p) \/ TakeOver(p) \/ Run(p) \/ Read(p) \/ ReadOther(p) \/ Release(p)
  \/ Java \/ Tick \/ SetBack \/ Delete \/ Failover \/ Force

Spec == Init /\ [][Next]_vars

-----------------------------------------------------------------------------
\* Each hold whose record is in Redis has a greater token than every hold before it.
S6 == ~fell

\* Not a rule: no block has more than one token.
OneByOne == \A p \in Procs : rest[p].first > rest[p].last

Bounds == counter <= End
=============================================================================
