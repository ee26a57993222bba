package trace

// The replay: TLC runs spec/Trace.tla on the traces.
//
// Rules: TLC alone decides. A run that does not print "accepted" or "rejected" for every trace is an error.

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
)

// A Verdict tells whether the specification explains a trace.
type Verdict struct {
	Trace
	Event int    // the number of the first event that the specification does not explain; 0: it explains all
	State string // before this event
}

// Text returns the event, the events around it with their times, and the state.
func (v Verdict) Text() string {
	var b strings.Builder
	for i := max(0, v.Event-8); i < min(v.Event+3, len(v.events)); i++ {
		fmt.Fprintf(&b, "%d: %s %s\n", i+1, v.events[i].at.Format("05.000000"), v.events[i].text)
	}
	return b.String() + "the state before it: " + v.State
}

// Steps returns the number of steps of the trace.
func (t Trace) Steps() int { return len(t.events) }

// Replay has TLC, which is in this jar, replay traces with the modules in the directory spec, and returns a verdict on
// each. It works in the directory work.
func Replay(ctx context.Context, jar, spec, work string, traces []Trace) ([]Verdict, error) {
	for _, name := range []string{"Line.tla", "Trace.tla", "Trace.cfg"} {
		text, err := os.ReadFile(filepath.Join(spec, name))
		if err != nil {
			return nil, err
		}
		if err := os.WriteFile(filepath.Join(work, name), text, 0o600); err != nil {
			return nil, err
		}
	}
	if err := os.WriteFile(filepath.Join(work, "TraceData.tla"), []byte(data(traces)), 0o600); err != nil {
		return nil, err
	}
	unpacked := filepath.Join(work, "unpacked") // other runs of TLC delete what they find in the temporary directory
	if err := os.Mkdir(unpacked, 0o700); err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(
		ctx,
		"java",
		"-Djava.io.tmpdir="+unpacked,
		"-XX:+UseSerialGC",
		"-XX:TieredStopAtLevel=1",
		"-Xss16m",
		"-Xmx2g",
		"-cp",
		jar,
		"tlc2.TLC",
		"-workers",
		"1",
		"-deadlock",
		"-config",
		"Trace.cfg",
		"Trace.tla",
	)
	cmd.Dir = work
	out, err := cmd.CombinedOutput()
	if err != nil {
		return nil, fmt.Errorf("TLC: %w\n%s", err, out)
	}
	return verdicts(string(out), traces)
}

// data returns the module TraceData.
func data(traces []Trace) string {
	var b strings.Builder
	b.WriteString("---- MODULE TraceData ----\nEXTENDS Naturals, Sequences\n")
	clients := 0
	names := make([]string, len(traces))
	for i, t := range traces {
		clients = max(clients, t.clients)
		names[i] = fmt.Sprintf("T%d", i+1)
		fmt.Fprintf(&b, "%s == [late |-> {%s}, events |-> <<\n", names[i], strings.Join(t.late, ","))
		for j, e := range t.events {
			if j > 0 {
				b.WriteString(",\n")
			}
			b.WriteString(e.text)
		}
		b.WriteString(">>]\n")
	}
	fmt.Fprintf(&b, "Traces == <<%s>>\n", strings.Join(names, ","))
	procs := make([]string, clients)
	for i := range procs {
		procs[i] = strconv.Quote(fmt.Sprintf("p%d", i+1))
	}
	fmt.Fprintf(&b, "TraceProcs == {%s}\n====\n", strings.Join(procs, ","))
	return b.String()
}

var (
	accepted = regexp.MustCompile(`<<\s*"accepted",\s*(\d+)\s*>>`)
	rejected = regexp.MustCompile(`(?s)<<\s*"rejected",\s*(\d+),\s*(\d+),\s*(\[.*?\])\s*>>\n`)
)

// verdicts parses the output of TLC.
func verdicts(out string, traces []Trace) ([]Verdict, error) {
	all := make([]Verdict, len(traces))
	known := 0
	for _, m := range accepted.FindAllStringSubmatch(out, -1) {
		i, _ := strconv.Atoi(m[1])
		all[i-1].Trace = traces[i-1]
		known++
	}
	for _, m := range rejected.FindAllStringSubmatch(out, -1) {
		i, _ := strconv.Atoi(m[1])
		event, _ := strconv.Atoi(m[2])
		all[i-1] = Verdict{traces[i-1], event, strings.Join(strings.Fields(m[3]), " ")}
		known++
	}
	if known != len(traces) {
		return nil, fmt.Errorf("TLC judged %d of %d traces:\n%s", known, len(traces), out)
	}
	return all, nil
}
