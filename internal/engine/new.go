package engine

// New puts the parts of an engine together.

import (
	"context"

	"github.com/relock-go/relock/internal/report"
	"github.com/relock-go/relock/internal/send"
	"github.com/relock-go/relock/internal/wake"
	"github.com/relock-go/relock/internal/workers"
)

// New returns an engine with the given config. sending has the config of its sender, which New completes.
func New(c Config, sending send.Config) *Engine {
	e := &Engine{Config: c}
	e.table.names = make(map[string]*lockState)
	e.life, e.endLife = context.WithCancel(context.Background())
	e.closed = e.life.Done()
	e.leaving, e.leave = context.WithCancel(context.Background())
	e.noNewHolds = e.leaving.Done()
	e.expired, e.limited = make(chan *hold, expiredKept), make(chan *hold, expiredKept)
	e.kept = new(keptFields)
	e.workers = new(workers.Pool)
	e.reporter = report.New(e.workers.Spawn)
	e.pubsub = wake.New(e.Servers, e.Log, e.subscriptionRefused)
	e.pubsub.PingEvery(e.PollInterval, e.WatchdogTimeout/3, e.Channel)
	e.fulfil = e.carryOut
	e.poller = e.newPoller()
	sending.RetryBudget, sending.Spawn, sending.Reroute, sending.Log =
		max(e.WatchdogTimeout, send.ConnectTime), e.workers.Spawn, e.pubsub.Reload, e.Log
	e.sender = send.New(sending)
	e.fields.id = e.ID
	e.hints = e.newHints()
	e.watchdog = e.newWatchdog()
	e.slowBegins = (&slowWatch{Engine: e}).begins
	return e
}

func (e *Engine) subscriptionRefused(channel string, err error) {
	if channel != "" && channel == e.Channel {
		e.hints.Refuse(err)
		return
	}
	e.reporter.Later(func() { e.Events.SubscriptionRefused(channel, err) })
}
