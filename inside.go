package relock

// What tests in other packages see of the values here: see internal/inside.

import "github.com/relock-go/relock/internal/inside"

func init() {
	inside.Of = func(value any) inside.View {
		switch v := value.(type) {
		case *Client:
			return inside.View{Client: v, Engine: v.engine(), Votes: &v.in().votes.mu, Redis: v.in().rdb}
		case *Hold:
			return inside.View{Owner: v.owner()}
		case known:
			h := v.inside()
			return inside.View{Client: h.client, Engine: h.client.engine(), Lock: h.lock}
		}
		return inside.View{}
	}
}
