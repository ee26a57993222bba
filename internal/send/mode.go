package send

// How a server is asked whether it is in Cluster mode.

import "context"

// InClusterMode asks a server of rdb whether it is in Cluster mode. If err is not nil, that is not known.
//
// It sends HELLO without arguments, which changes nothing, and which every user may send: unlike INFO and CLUSTER it
// needs no permission. A server that answers anything else than Redis 6.2 or later counts as one without Cluster mode.
// It has no sharded channels either, which is all that the answer is used for. But a server that does not admit the
// connection has not answered the question.
func InClusterMode(ctx context.Context, rdb processor) (inCluster bool, err error) {
	err = CatchPanic(func() error {
		answer, err := process(ctx, rdb, newOnceCmd(ctx, "hello"))
		if err != nil && Answered(err) && !Transient(err) && !NotAdmitted(err) {
			err = nil
		}
		inCluster = helloMode(answer) == "cluster"
		return err
	})
	return inCluster, err
}

// helloMode returns the mode in the answer to HELLO: a map in RESP3, and a list of keys and values in RESP2.
func helloMode(answer any) any {
	switch answer := answer.(type) {
	case map[any]any:
		return answer["mode"]
	case []any:
		for i := 0; i+1 < len(answer); i += 2 {
			if answer[i] == any("mode") {
				return answer[i+1]
			}
		}
	}
	return nil
}
