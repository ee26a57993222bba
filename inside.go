package relock

// What tests in other packages see of the values here: see internal/inside.

import (
	"github.com/relock-go/relock/internal/engine"
	"github.com/relock-go/relock/internal/inside"
	"github.com/relock-go/relock/internal/opaque"
	"github.com/relock-go/relock/internal/route"
	"github.com/relock-go/relock/internal/wake"
)

func init() {
	inside.Of = func(value any) inside.View {
		switch v := value.(type) {
		case *Client:
			return inside.View{Client: v, Engine: v.engine(), Votes: &v.in().votes.mu, Redis: v.in().rdb}
		case *Hold:
			return inside.View{Owner: v.owner()}
		case known:
			h := v.inside()
			return inside.View{Client: h.client, Engine: h.client.engine(), Lock: h.lock, Record: h.record()}
		}
		return inside.View{}
	}
	inside.Unlabeled = Option(func(o *options) { o.label, o.labels = "", false })
	inside.Config = func(id string, opts any, dial func() wake.Subscriber) (engine.Config, error) {
		o, err := newOptions(opts.([]Option))
		o.labels = true // as if the label was written already
		return (&Client{hidden: opaque.To(new(clientState))}).config(id, o, route.One(dial)), err
	}
}
